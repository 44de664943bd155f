-- drained: is nothing ready, held, or scheduled (before a time)? One atomic answer.
-- KEYS  todos in_progress scheduled meta
-- PARTS open
-- ARGV  1 call id   2 age of the call, ms   3 before: due time, ms, or +inf
-- Reply 1 or 0
local busy = redis.call('SCARD', todos) + redis.call('SCARD', in_progress)
return busy + redis.call('ZCOUNT', scheduled, '-inf', '(' .. ARGV[3]) == 0 and 1 or 0
