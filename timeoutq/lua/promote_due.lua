-- promote_due: scheduled tasks whose time has come become ready.
-- KEYS  todos scheduled meta stats bell alarm
-- PARTS open wake
-- ARGV  1 call id   2 age of the call, ms   3 at most
-- Reply {now ms, promoted, 1 if there may be more}
local n = tonumber(ARGV[3])
local ids = redis.call('ZRANGEBYSCORE', scheduled, '-inf', now, 'LIMIT', 0, n)
if #ids > 0 then
  redis.call('ZREM', scheduled, unpack(ids))
  redis.call('SADD', todos, unpack(ids))
  redis.call('HINCRBY', stats, 'promoted', #ids)
  if redis.call('SCARD', todos) == #ids then
    redis.call('HSET', stats, 'todos_since', now)
  end
  ring()
end
return {now, #ids, #ids == n and 1 or 0}
