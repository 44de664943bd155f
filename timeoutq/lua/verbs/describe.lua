-- describe: what an export says of tasks. It ends early when their payloads are many bytes: ask for the rest again.
-- ARGS  1 call id   2 age of the call, ms   3 bytes of payloads after which it ends, number   4.. id *
-- Reply {letters, {time? ms *}, {failures? *}, {crashes? *}, {error? *}, {payload? *}, {group? *}, {priority? *},
--       {until? ms *}}, one per id: t w p d f s the state that holds it; u it is in none. Times are due of s, acked of
--       d; payloads, groups, priorities and until, when a done task ceases to block its id, are {} where no task has
--       one
verb('describe', {flags = {'no-writes'}}, function()
  local ids, most = {unpack(args, 4)}, tonumber(args[3])
  local bodies, marks, bytes = {}, {}, 0
  if has('rerun') or call('EXISTS', key.payload) == 1 then
    while #bodies < #ids and bytes < most do
      local page = {unpack(ids, #bodies + 1, math.min(#bodies + 20, #ids))}
      local found, mark = call('HMGET', key.payload, unpack(page)), rerun.marks_of(page)
      for i = 1, #page do
        marks[#bodies + 1], bodies[#bodies + 1] = mark[i], found[i]
        bytes = bytes + (found[i] and #found[i] or 0) + (mark[i] and #mark[i] or 0)
      end
    end
    ids = {unpack(ids, 1, #bodies)}
  end
  local letters, times = find.letters(ids), {}
  local due, acked = call('ZMSCORE', key.scheduled, unpack(ids)), done.times(ids)
  for i = 1, #ids do times[i] = due[i] or acked[i] end
  local last_errors, by = call('HMGET', key.errors, unpack(ids)), cancel.marks_of(ids)
  local priorities = has('priority') and call('HMGET', key.priorities, unpack(ids)) or {}
  for i = 1, #ids do
    -- a task in progress that is to run once more comes as what it is in its next run
    local next_priority, body = rerun.read(marks[i])
    if next_priority and letters[i] == 'p' then
      priorities[i], bodies[i] = next_priority, body or bodies[i]
    end
    if priorities[i] or has('rerun') then priorities[i] = priority.read(priorities[i]) or false end
    -- a cancelled one must not run again
    if by[i] and letters[i] == 'p' then letters[i], last_errors[i] = 'f', now .. ' cancelled by ' .. by[i] end
  end
  return {
    table.concat(letters), times, call('HMGET', key.attempts, unpack(ids)), call('HMGET', key.crashes, unpack(ids)),
    last_errors, bodies,
    call('EXISTS', key.groups) == 1 and call('HMGET', key.groups, unpack(ids)) or {},
    priorities, has('until') and call('ZMSCORE', key.done_until, unpack(ids)) or {},
  }
end)
