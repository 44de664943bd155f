-- purge: remove the queue, at most n leases with their lock keys, or hosts with their sets, or sets of fingerprints, a call; then all at
-- once.
-- ARGS  1 call id   2 age of the call, ms   3 at most, number   4.. stray *: lanes (host:NAME), locks (lock:ID), sets (seen:NUMBER), results
--       (result:ID), answers (answers:CLIENT) and tasks of batches (batch:NAME) that were seen after the end
-- Reply over, 0 or 1: 1 when nothing is left, 0 to call again
-- a key of a foreign type goes with the others in the end
do
local last_words = {
  'todos', 'in_progress', 'done', 'failed', 'scheduled', 'leases', 'owners', 'done_at', 'payload', 'attempts', 'crashes', 'errors', 'error_log',
  'runtime', 'stats', 'bell', 'alarm', 'calls', 'workers', 'worker_info', 'history', 'meta', 'hosts', 'waiting', 'slots', 'places', 'groups',
  'policies', 'resting', 'host_failures', 'traces', 'trace_uses', 'trace_texts', 'trace_at', 'releases', 'durations0', 'durations1', 'durations',
  'leftovers', 'priorities', 'rerun', 'seen', 'schedules', 'ticks', 'ticked', 'functions', 'batches', 'batch_of', 'cancels', 'progress',
  'done_until', 'events', 'kinds', 'kind_of', 'minutes', 'hours',
}

verb('purge', {flags = {'allow-oom'}}, function()
  -- strays: where a foreign hand has deleted `hosts` or `leases`, their lanes and locks are known by their own keys only; those that
  -- a new queue of this name has made by now are known, and stay
  local sized = try('HMGET', key.seen, 'level', 'split')
  local level, split = number(sized[1], -1), number(sized[2], -1)
  local sets = level >= 0 and level <= 31 and split >= 0 and split < 2 ^ level and math.floor(2 ^ level) + split or 0
  for i = 4, #args do
    local host, id, set = string.match(args[i], '^host:(.*)$'), string.match(args[i], '^lock:(.*)$'), string.match(args[i], '^seen:(%d+)$')
    if host and not call('ZSCORE', key.hosts, host)
      or not schema and (string.find(args[i], '^result:') or string.find(args[i], '^answers:') or string.find(args[i], '^batch:'))
      or id and not call('ZSCORE', key.leases, id) or set and number(set, sets) >= sets then
      call('UNLINK', named(args[i]))
    end
  end
  if #args > 3 then return 1 end
  local ids = try('ZRANGE', key.leases, 0, tonumber(args[3]) - 1)
  if #ids > 0 then
    call('UNLINK', unpack(leases.locks_of(ids)))
    try('SREM', key.in_progress, unpack(ids))
    try('ZREM', key.leases, unpack(ids))
    try('HDEL', key.owners, unpack(ids))
    return 0
  end
  local names = try('ZRANGE', key.hosts, 0, tonumber(args[3]) - 1)
  if #names > 0 then
    local lanes = {}
    for i = 1, #names do
      lanes[i] = named('host:' .. names[i])
    end
    call('UNLINK', unpack(lanes))
    try('ZREM', key.hosts, unpack(names))
    return 0
  end
  local found, doomed = try('HSCAN', key.batches, 0, 'COUNT', args[3]), {}
  if found[2] and found[2][1] then
    for i = 1, #found[2], 2 do names[#names + 1], doomed[#doomed + 1] = found[2][i], batches.key_of(found[2][i]) end
    call('UNLINK', unpack(doomed))
    try('HDEL', key.batches, unpack(names))
    return 0
  end
  if sets > 0 then
    -- the last sets go first, and level and split follow: so those that are left are whole, if nobody goes on
    local rest, doomed = math.max(0, sets - tonumber(args[3])), {}
    for set = rest, sets - 1 do doomed[#doomed + 1] = named('seen:' .. set) end
    call('UNLINK', unpack(doomed))
    if rest > 0 then
      level = 0
      while 2 ^ (level + 1) <= rest do level = level + 1 end
      call('HSET', key.seen, 'level', level, 'split', rest - 2 ^ level)
      return 0
    end
  end
  local all = {}
  for i = 1, #last_words do all[i] = named(last_words[i]) end
  call('UNLINK', unpack(all))
  -- who waits is told when no state holds the tasks any more
  local waits = try('HSCAN', key.awaited, 0, 'COUNT', args[3])
  if waits[2] and waits[2][1] then
    for i = 1, #waits[2], 2 do ids[#ids + 1] = waits[2][i] end
    results.tell_clients(ids)
    return 0
  end
  call('UNLINK', key.awaited)
  return 1
end)
end
