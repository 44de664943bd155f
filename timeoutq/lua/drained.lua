-- drained: is nothing ready, held, scheduled (before a time), or waiting for its host's turn? One atomic answer.
-- KEYS  todos in_progress scheduled meta
-- PARTS open
-- ARGV  1 call id   2 age of the call, ms   3 before: due time, ms, or +inf
-- Reply 1 or 0
local busy = redis.call('SCARD', todos) + redis.call('SCARD', in_progress)
if settings[7] then
  -- what waits for no time, since its host's budget is used up, will not run by itself
  busy = busy + redis.call('ZCOUNT', string.sub(meta, 1, -5) .. 'hosts', '-inf', '(' .. ARGV[3])
end
return busy + redis.call('ZCOUNT', scheduled, '-inf', '(' .. ARGV[3]) == 0 and 1 or 0
