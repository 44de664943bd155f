-- drained: is nothing ready, held, scheduled (before a time), or waiting for its host's turn?
-- ARGS  1 call id   2 age of the call, ms   3 before, ms or +inf: due time
--       4 cursor: where the walk goes on, 0 at first
--       5 counted, 0 or 1: 1 to tell the counters, too
-- Reply {drained 0 or 1, cursor, [{(counter, value) *}]}: 0 as the cursor: the answer is final. Usually this is one atomic answer. Only when tasks wait, and no host
--       will have a turn, each waiting task is asked why it waits, which may take several calls
verb('drained', {flags = {'no-writes'}}, function()
  local busy = call('SCARD', key.todos) + call('SCARD', key.in_progress)
    -- a lease or an owner without a task in progress: a foreign hand took the task away, and the task comes back
    + call('ZCARD', key.leases) + call('HLEN', key.owners)
    + (args[3] == '+inf' and call('ZCARD', key.scheduled) or call('ZCOUNT', key.scheduled, '-inf', '(' .. args[3]))
  local reply = (busy > 0 or hosts.turn_before(args[3])) and {0, '0'} or hosts.look_at_waiting(args[4])
  if args[5] == '1' then reply[3] = call('HGETALL', key.stats) end
  return reply
end)
