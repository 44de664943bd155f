-- inspect: all that is known of one task.
-- KEYS  todos in_progress done failed scheduled leases owners payload attempts crashes errors meta
-- PARTS open
-- ARGV  1 call id   2 age of the call, ms   3 id
-- Reply {now ms, state letter or u, due ms, deadline ms, token, failures, crashes, error, payload}; nil where unknown
local id, state = ARGV[3], 'u'
if redis.call('SISMEMBER', todos, id) == 1 then state = 't' end
if redis.call('SISMEMBER', in_progress, id) == 1 then state = 'p' end
if redis.call('SISMEMBER', done, id) == 1 then state = 'd' end
if redis.call('SISMEMBER', failed, id) == 1 then state = 'f' end
local due = redis.call('ZSCORE', scheduled, id)
if due then state = 's' end
return {
  now, state, due, redis.call('ZSCORE', leases, id), redis.call('HGET', owners, id),
  redis.call('HGET', attempts, id), redis.call('HGET', crashes, id), redis.call('HGET', errors, id),
  redis.call('HGET', payload, id),
}
