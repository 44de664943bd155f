-- drop: forget the leases on the ids: lock keys, deadlines, owners, limits
local function drop(ids)
  if #ids == 0 then return end
  local locks = {}
  for i = 1, #ids do
    locks[i] = lock .. ids[i]
  end
  redis.call('DEL', unpack(locks))
  redis.call('ZREM', leases, unpack(ids))
  redis.call('HDEL', owners, unpack(ids))
  if redis.call('EXISTS', runtime) == 1 then
    redis.call('HDEL', runtime, unpack(ids))
  end
end
