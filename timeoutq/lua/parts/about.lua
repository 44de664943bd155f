-- about: all that is known of one task
-- PARTS ready done
local function about(id)
  local state = 'u'
  if redis.call('SISMEMBER', todos, id) == 1 then state = 't' end
  if redis.call('SISMEMBER', in_progress, id) == 1 then state = 'p' end
  if is_done(id) then state = 'd' end
  if redis.call('SISMEMBER', failed, id) == 1 then state = 'f' end
  if redis.call('SISMEMBER', key('waiting'), id) == 1 then state = 'w' end
  local due = redis.call('ZSCORE', scheduled, id)
  if due then state = 's' end
  local digest = redis.call('HGET', key('traces'), id)
  return {
    now, state, due, redis.call('ZSCORE', leases, id), redis.call('HGET', owners, id),
    redis.call('HGET', attempts, id), redis.call('HGET', crashes, id), redis.call('HGET', errors, id),
    redis.call('HGET', payload, id), hosts_of({id})[1] or false,
    digest and redis.call('HGET', key('trace_texts'), digest), redis.call('HGET', key('releases'), id),
    has('priority') and redis.call('HGET', key('priorities'), id), has('rerun') and redis.call('HEXISTS', key('rerun'), id) or 0,
    has('results') and redis.call('EXISTS', key('result:' .. id)) or 0,
    has('cancel') and redis.call('HGET', key('cancels'), id), has('progress') and redis.call('HGET', key('progress'), id),
  }
end
