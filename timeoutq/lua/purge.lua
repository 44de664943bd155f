-- purge: remove the queue, at most n leases with their lock keys a call, then every key at once.
-- KEYS  todos in_progress done failed scheduled leases owners lock done_at payload attempts crashes errors error_log runtime stats bell alarm calls workers worker_info history meta
-- PARTS open
-- ARGV  1 call id   2 age of the call, ms   3 at most
-- Reply 1 when nothing is left, 0 to call again
local ids = redis.call('ZRANGE', leases, 0, tonumber(ARGV[3]) - 1)
if #ids > 0 then
  local locks = {}
  for i = 1, #ids do
    locks[i] = lock .. ids[i]
  end
  redis.call('UNLINK', unpack(locks))
  redis.call('SREM', in_progress, unpack(ids))
  redis.call('ZREM', leases, unpack(ids))
  redis.call('HDEL', owners, unpack(ids))
  return 0
end
redis.call('UNLINK', unpack(KEYS))
return 1
