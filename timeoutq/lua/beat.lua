-- beat: a worker says that it lives; those that have not for five minutes are struck off.
-- KEYS  workers worker_info meta
-- PARTS open
-- SOUND workers worker_info
-- ARGV  1 call id   2 age of the call, ms   3 worker   4 what it says of itself, JSON, or empty when it leaves
-- Reply how many workers said so within the last minute
sound()
if ARGV[4] == '' then
  redis.call('ZREM', workers, ARGV[3])
  redis.call('HDEL', worker_info, ARGV[3])
else
  redis.call('HDEL', worker_info, ARGV[3]) -- goes first: a full server allows it, and all that follows it
  redis.call('ZADD', workers, now, ARGV[3])
  redis.call('HSET', worker_info, ARGV[3], ARGV[4])
end
local gone = redis.call('ZRANGEBYSCORE', workers, '-inf', now - 300000, 'LIMIT', 0, 100)
if #gone > 0 then
  redis.call('ZREM', workers, unpack(gone))
  redis.call('HDEL', worker_info, unpack(gone))
end
return redis.call('ZCOUNT', workers, now - 60000, '+inf')
