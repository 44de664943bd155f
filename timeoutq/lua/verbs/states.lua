-- states: where tasks are, and nothing else of them; it reads only.
-- ARGS  1 call id   2 age of the call, ms   3.. id *
-- Reply letters, one per id: t w p d f s the state that holds it; u none does
verb('states', {flags = {'no-writes'}}, function()
  local ids, letters = {unpack(args, 3)}, {}
  for i = 1, #ids do letters[i] = 'u' end
  local function mark(hits, letter)
    for i = 1, #ids do
      if hits[i] == 1 then letters[i] = letter end
    end
  end
  mark(call('SMISMEMBER', key.todos, unpack(ids)), 't')
  mark(call('SMISMEMBER', key.in_progress, unpack(ids)), 'p')
  mark(done.among(ids), 'd')
  mark(call('SMISMEMBER', key.failed, unpack(ids)), 'f')
  mark(call('SMISMEMBER', key.waiting, unpack(ids)), 'w')
  local due = call('ZMSCORE', key.scheduled, unpack(ids))
  for i = 1, #ids do
    if due[i] then letters[i] = 's' end
  end
  return table.concat(letters)
end)
