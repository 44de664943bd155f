-- states: where tasks are, and nothing else of them; it reads only.
-- KEYS  todos in_progress done failed scheduled done_at lock meta
-- PARTS open done
-- ARGV  1 call id   2 age of the call, ms   3.. id *
-- Reply letters, one per id: t w p d f s the state that holds it; u none does
local ids, letters = {unpack(ARGV, 3)}, {}
for i = 1, #ids do letters[i] = 'u' end
local function mark(hits, letter)
  for i = 1, #ids do
    if hits[i] == 1 then letters[i] = letter end
  end
end
mark(redis.call('SMISMEMBER', todos, unpack(ids)), 't')
mark(redis.call('SMISMEMBER', in_progress, unpack(ids)), 'p')
mark(done_among(ids), 'd')
mark(redis.call('SMISMEMBER', failed, unpack(ids)), 'f')
mark(redis.call('SMISMEMBER', key('waiting'), unpack(ids)), 'w')
local due = redis.call('ZMSCORE', scheduled, unpack(ids))
for i = 1, #ids do
  if due[i] then letters[i] = 's' end
end
return table.concat(letters)
