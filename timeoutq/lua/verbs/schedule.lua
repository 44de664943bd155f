-- schedule: add tasks that become ready at a time; move the time of those already scheduled, earlier or later.
-- ARGS  1 call id, nonce   2 age of the call, ms   3 due, ms or +ms: since 1970, or from now
--       4.. count, id * count; sections
-- SECTIONS  again=0 done and failed tasks, too   group=1 the host of all tasks   payloads=pairs (position, payload)
--       groups=pairs (position, host): tasks with a host of their own   priority=1 the priority of all tasks
--       priorities=pairs (position, priority)   improve=n positions, none for all: with a higher priority than before, a done task
--       comes back, and one in progress runs once more   batch=1 the batch that the tasks join   unique=numbers (position, ms): the
--       task comes back if it failed, so long after its last error
-- Reply letters, one per id: A added; r raised, as by put; s was scheduled and has the new time, or is the callback of a batch and is left as it is;
--       t w p d f the state it already is in
verb('schedule', {}, function()
  local call_id = args[1]
  local ids, at = tasks.read(4)
  local given, refused = sections(at, ' again=0 group=1 payloads=pairs groups=pairs priority=1 priorities=pairs improve=n batch=1 unique=numbers')
  if refused then return refused end
  local priorities, batched, unfit
  if given.priority or given.priorities then priorities, unfit = priority.of(ids, given) end
  if given.unique then unfit = unfit or lasting.cannot(given.unique) end
  if unfit then return unfit end
  if given.batch then batched, unfit = batches.may_join(given.batch, ids) end
  if unfit then return unfit end
  local due = tonumber((string.match(args[3], '^%+?(%d+)$')))
  if not due then return {err = 'TIME when the tasks are due is no number of milliseconds'} end
  if string.sub(args[3], 1, 1) == '+' then due = now + due end
  if due == batches.WAITS then due = due + 1 end -- this very time is that of callbacks which wait for their batches
  if args[2] ~= '0' then
    local before = calls.answered_before(call_id, ids)
    if before then return before end
  end
  local codes = tasks.add(ids, given, given.again, due, priorities)
  if batched then batches.join(given.batch, ids, batched) end
  calls.note(call_id)
  return codes
end)
