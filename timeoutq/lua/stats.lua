-- stats: the sizes of all states, the counters and the settings, at one moment.
-- KEYS  todos in_progress done failed scheduled leases workers meta stats
-- PARTS open
-- ARGV  1 call id   2 age of the call, ms
-- Reply {now ms, todos, scheduled, in_progress, done, failed, next due ms, next deadline ms, workers, counters, settings}
local due = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')
local lease = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')
return {
  now, redis.call('SCARD', todos), redis.call('ZCARD', scheduled), redis.call('SCARD', in_progress),
  redis.call('SCARD', done), redis.call('SCARD', failed), due[2] or false, lease[2] or false,
  redis.call('ZCOUNT', workers, now - 60000, '+inf'), redis.call('HGETALL', stats), redis.call('HGETALL', meta),
}
