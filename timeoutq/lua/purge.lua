-- purge: remove the queue, at most n leases with their lock keys, or hosts with their sets, a call; then all at once.
-- KEYS  todos in_progress done failed scheduled leases owners lock done_at payload attempts crashes errors error_log runtime stats bell alarm calls workers worker_info history meta
-- PARTS open locks
-- ARGV  1 call id   2 age of the call, ms   3 at most   4.. lanes (host:NAME) and locks (lock:ID) that were seen after the end
-- Reply 1 when nothing is left, 0 to call again
-- a key of a foreign type goes with the others in the end
local try = redis.pcall
-- strays: where a foreign hand has deleted `hosts` or `leases`, their lanes and locks are known by their own keys only; those that
-- a new queue of this name has made by now are known, and stay
for i = 4, #ARGV do
  local host, id = string.match(ARGV[i], '^host:(.*)$'), string.match(ARGV[i], '^lock:(.*)$')
  if host and not redis.call('ZSCORE', key('hosts'), host)
    or id and not redis.call('ZSCORE', leases, id) then
    redis.call('UNLINK', key(ARGV[i]))
  end
end
if #ARGV > 3 then return 1 end
local ids = try('ZRANGE', leases, 0, tonumber(ARGV[3]) - 1)
if #ids > 0 then
  redis.call('UNLINK', unpack(locks_of(ids)))
  try('SREM', in_progress, unpack(ids))
  try('ZREM', leases, unpack(ids))
  try('HDEL', owners, unpack(ids))
  return 0
end
local names = try('ZRANGE', key('hosts'), 0, tonumber(ARGV[3]) - 1)
if #names > 0 then
  local lanes = {}
  for i = 1, #names do
    lanes[i] = key('host:' .. names[i])
  end
  redis.call('UNLINK', unpack(lanes))
  try('ZREM', key('hosts'), unpack(names))
  return 0
end
redis.call('UNLINK', key('hosts'), key('waiting'), key('slots'), key('places'))
redis.call('UNLINK', key('groups'), key('policies'), key('resting'), key('host_failures'))
redis.call('UNLINK', key('traces'), key('trace_uses'), key('trace_texts'), key('trace_at'))
redis.call('UNLINK', key('releases'), key('durations0'), key('durations1'), key('leftovers'), key('priorities'), key('rerun'))
redis.call('UNLINK', unpack(KEYS))
return 1
