-- schedule: add tasks that become ready at a time; move the time of those already scheduled, earlier or later.
-- ARGS  1 call id, nonce   2 age of the call, ms   3 due, ms or +ms: since 1970, or from now
--       4.. count, id * count; sections
-- SECTIONS  again=0 done and failed tasks, too   group=1 the host of all tasks   payloads=pairs (position, payload)
--       groups=pairs (position, host): tasks with a host of their own   priority=1 the priority of all tasks
--       priorities=pairs (position, priority)   improve=n positions, none for all: with a higher priority than before,
--       a done task comes back, and one in progress runs once more   batch=1 the batch that the tasks join
--       unique=numbers (position, ms): the task comes back if it failed, so long after its last error
-- Reply letters, one per id: A added; r raised, as by put; s was scheduled and has the new time, or is the callback of
--       a batch and is left as it is; t w p d f the state it already is in
verb('schedule', {}, function()
  local ids, at = tasks.read(4)
  local given, refused = sections(at, ' again=0 group=1 payloads=pairs groups=pairs priority=1 priorities=pairs improve=n batch=1'
    .. ' unique=numbers')
  if refused then return refused end
  local from_now, ms = string.match(args[3], '^(%+?)(%d+)$')
  local due = ms and (from_now == '+' and now or 0) + tonumber(ms) or false
  if due == batches.WAITS then due = due + 1 end -- this very time is that of callbacks which wait for their batches
  return tasks.put(ids, given, due)
end)
