-- drained: is nothing ready, held, scheduled (before a time), or waiting for its host's turn?
-- KEYS  todos in_progress scheduled leases lock meta stats bell alarm
-- PARTS open stranded
-- ARGV  1 call id   2 age of the call, ms   3 before, ms or +inf: due time
--       4 cursor: where the walk goes on, 0 at first: a cursor of the waiting tasks, or k and a cursor of all keys
--       5 counted, 0 or 1: 1 to tell the counters, too
-- Reply {drained 0 or 1, cursor, [{(counter, value) *}]}: 0 as the cursor: the answer is final. Usually this is one atomic answer. Only when tasks wait, and no host
--       will have a turn, each waiting task is asked why it waits, which may take several calls. Where a foreign hand has deleted
--       the turns of hosts, or the settings, lanes may be left that only their own names tell of: these are looked for
local busy = redis.call('SCARD', todos) + redis.call('SCARD', in_progress)
  -- a lease or an owner without a task in progress: a foreign hand took the task away, and the task comes back
  + redis.call('ZCARD', leases) + redis.call('HLEN', key('owners'))
  + (ARGV[3] == '+inf' and redis.call('ZCARD', scheduled) or redis.call('ZCOUNT', scheduled, '-inf', '(' .. ARGV[3]))
local reply = (busy > 0 or turn_before(ARGV[3])) and {0, '0'} or look_at_waiting(ARGV[4])
if ARGV[5] == '1' then reply[3] = redis.call('HGETALL', stats) end
return reply
