-- stats: the sizes of all states, the counters and the settings, at one moment.
-- KEYS  todos in_progress done failed scheduled leases workers done_at lock meta stats
-- PARTS open turns done ages
-- ARGV  1 call id   2 age of the call, ms
-- Reply {now ms, todos number, scheduled number, in_progress number, done number, failed number, next due? ms, next deadline? ms, workers number, {(counter, count) *}, {(setting, value) *},
--       waiting number, hosts number, next turn of a host? ms, {{(field, runs) *} *}}: the last is how long handlers ran, in two spans
local due = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')
local lease = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')
local waiting, hosts = turn_counts()
local turn = next_turn()
return {
  now, redis.call('SCARD', todos), redis.call('ZCARD', scheduled), redis.call('SCARD', in_progress),
  done_count(), redis.call('SCARD', failed), due[2] or false, lease[2] or false,
  redis.call('ZCOUNT', workers, now - 60000, '+inf'), redis.call('HGETALL', stats), redis.call('HGETALL', meta),
  waiting, hosts, turn and string.format('%.0f', turn) or false,
  {redis.call('HGETALL', key('durations0')), redis.call('HGETALL', key('durations1')), redis.call('HGETALL', key('durations'))},
}
