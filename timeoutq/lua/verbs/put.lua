-- put: add tasks that no state knows; say for each what was found.
-- ARGS  1 call id, nonce   2 age of the call, ms   3.. count, id * count; sections
-- SECTIONS  again=0 done and failed tasks, too   group=1 the host of all tasks   payloads=pairs (position, payload)
--       groups=pairs (position, host): tasks with a host of their own   priority=1 the priority of all tasks
--       priorities=pairs (position, priority)   improve=n positions, none for all: with a higher priority than before,
--       a done task comes back, and one in progress runs once more   batch=1 the batch that the tasks join
--       unique=numbers (position, ms): the task comes back if it failed, so long after its last error   rerun=n
--       positions, none for all: a run of the task begins after this put, with its payload   visited=1 the task that
--       found these: its visit is over, and its ack follows
-- Reply letters, one per id: A added; r raised: the task was there and has this priority from now on; n it runs once
--       more; t w p d f s the state it already is in
verb('put', {reads = {'schema', 'uses'}}, function()
  local ids, at = tasks.read(3)
  local given, refused = sections(at, ' again=0 group=1 payloads=pairs groups=pairs priority=1 priorities=pairs improve=n batch=1'
    .. ' unique=numbers rerun=n visited=1')
  if refused then return refused end
  return tasks.put(ids, given)
end)
