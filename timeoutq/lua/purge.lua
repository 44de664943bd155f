-- purge: remove the queue, at most n leases with their lock keys, or hosts with their sets, or sets of fingerprints, a call; then all at
-- once.
-- KEYS  todos in_progress done failed scheduled leases owners lock done_at payload attempts crashes errors error_log runtime stats bell alarm calls workers worker_info history meta
-- PARTS open locks results batch
-- ARGV  1 call id   2 age of the call, ms   3 at most, number   4.. stray *: lanes (host:NAME), locks (lock:ID), sets (seen:NUMBER), results
--       (result:ID), answers (answers:CLIENT) and tasks of batches (batch:NAME) that were seen after the end
-- Reply over, 0 or 1: 1 when nothing is left, 0 to call again
-- a key of a foreign type goes with the others in the end
local try = redis.pcall
-- strays: where a foreign hand has deleted `hosts` or `leases`, their lanes and locks are known by their own keys only; those that
-- a new queue of this name has made by now are known, and stay
local sized = try('HMGET', key('seen'), 'level', 'split')
local level, split = number(sized[1], -1), number(sized[2], -1)
local sets = level >= 0 and level <= 31 and split >= 0 and split < 2 ^ level and math.floor(2 ^ level) + split or 0
for i = 4, #ARGV do
  local host, id, set = string.match(ARGV[i], '^host:(.*)$'), string.match(ARGV[i], '^lock:(.*)$'), string.match(ARGV[i], '^seen:(%d+)$')
  if host and not redis.call('ZSCORE', key('hosts'), host)
    or not schema and (string.find(ARGV[i], '^result:') or string.find(ARGV[i], '^answers:') or string.find(ARGV[i], '^batch:'))
    or id and not redis.call('ZSCORE', leases, id) or set and number(set, sets) >= sets then
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
local found, doomed = try('HSCAN', key('batches'), 0, 'COUNT', ARGV[3]), {}
if found[2] and found[2][1] then
  for i = 1, #found[2], 2 do names[#names + 1], doomed[#doomed + 1] = found[2][i], batch_key(found[2][i]) end
  redis.call('UNLINK', unpack(doomed))
  try('HDEL', key('batches'), unpack(names))
  return 0
end
if sets > 0 then
  -- the last sets go first, and level and split follow: so those that are left are whole, if nobody goes on
  local rest, doomed = math.max(0, sets - tonumber(ARGV[3])), {}
  for set = rest, sets - 1 do doomed[#doomed + 1] = key('seen:' .. set) end
  redis.call('UNLINK', unpack(doomed))
  if rest > 0 then
    level = 0
    while 2 ^ (level + 1) <= rest do level = level + 1 end
    redis.call('HSET', key('seen'), 'level', level, 'split', rest - 2 ^ level)
    return 0
  end
end
redis.call('UNLINK', key('hosts'), key('waiting'), key('slots'), key('places'))
redis.call('UNLINK', key('groups'), key('policies'), key('resting'), key('host_failures'))
redis.call('UNLINK', key('traces'), key('trace_uses'), key('trace_texts'), key('trace_at'))
redis.call('UNLINK', key('releases'), key('durations0'), key('durations1'), key('durations'), key('leftovers'), key('priorities'), key('rerun'))
redis.call('UNLINK', key('seen'), key('schedules'), key('ticks'), key('ticked'), key('functions'), key('batches'), key('batch_of'))
redis.call('UNLINK', key('cancels'), key('progress'), key('done_until'), key('events'), key('kinds'), key('kind_of'))
redis.call('UNLINK', key('minutes'), key('hours'))
redis.call('UNLINK', unpack(KEYS))
-- who waits is told when no state holds the tasks any more
local waits = try('HSCAN', key('awaited'), 0, 'COUNT', ARGV[3])
if waits[2] and waits[2][1] then
  for i = 1, #waits[2], 2 do ids[#ids + 1] = waits[2][i] end
  rarely('tell_clients')(ids)
  return 0
end
redis.call('UNLINK', key('awaited'))
return 1
