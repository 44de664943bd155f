-- drop: forget the leases on the ids: lock keys, deadlines, owners, limits, cancels, progress; `endless`: it is known that there are no limits
-- PARTS locks cancel progress
local function drop(ids, endless)
  if #ids == 0 then return end
  redis.call('DEL', unpack(locks_of(ids)))
  redis.call('ZREM', leases, unpack(ids))
  redis.call('HDEL', owners, unpack(ids))
  if not endless and redis.call('EXISTS', runtime) == 1 then
    redis.call('HDEL', runtime, unpack(ids))
  end
  if uncancel then
    uncancel(ids)
    forget_progress(ids)
  end
end
