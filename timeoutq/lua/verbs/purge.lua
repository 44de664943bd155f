-- purge: remove the queue, at most n leases with their lock keys, or hosts with their sets, or sets of fingerprints, a
-- call; then all at once.
-- ARGS  1 call id   2 age of the call, ms   3 at most, number   4.. stray *: lanes (host:NAME), locks (lock:ID), sets
--       (seen:NUMBER), results (result:ID), records (record:ID), answers (answers:CLIENT) and tasks of batches (batch:NAME) that were seen
--       after the end
-- Reply over, 0 or 1: 1 when nothing is left, 0 to call again
do
  -- remove_strays: where somebody has deleted `hosts` or `leases` by hand, their lanes and locks are known by their own
  -- keys only; those that a new queue of this name has made by now stay
  local function remove_strays(sets)
    for i = 4, #args do
      local kind, name = string.match(args[i], '^(%l+):(.*)$')
      local is_known = schema
      if kind == 'host' then is_known = call('ZSCORE', key.hosts, name) end
      if kind == 'lock' then is_known = call('ZSCORE', key.leases, name) end
      if kind == 'seen' then is_known = number(name, sets) < sets end
      if not is_known then call('UNLINK', named(args[i])) end
    end
    return 1
  end

  -- remove_sets: the last sets of fingerprints go, level and split follow, and those that are left are whole; gives
  -- whether some are
  local function remove_sets(sets, rest)
    local doomed, level = {}, 0
    for set = rest, sets - 1 do doomed[#doomed + 1] = named('seen:' .. set) end
    call('UNLINK', unpack(doomed))
    if rest == 0 then return false end
    while 2 ^ (level + 1) <= rest do level = level + 1 end
    call('HSET', key.seen, 'level', level, 'split', rest - 2 ^ level)
    return true
  end

  -- a key of a foreign type goes with the others in the end
  verb('purge', {flags = {'allow-oom'}}, function()
    local most, seen = tonumber(args[3]), try('HMGET', key.seen, 'level', 'split')
    local sets = seen[1] and math.floor(2 ^ seen[1]) + seen[2] or 0
    if #args > 3 then return remove_strays(sets) end
    local ids = try('ZRANGE', key.leases, 0, most - 1)
    if #ids > 0 then
      call('UNLINK', unpack(leases.locks_of(ids)))
      try('SREM', key.in_progress, unpack(ids))
      try('ZREM', key.leases, unpack(ids))
      try('HDEL', key.owners, unpack(ids))
      return 0
    end
    local doomed, names = {}, try('ZRANGE', key.hosts, 0, most - 1)
    for i = 1, #names do doomed[i] = hosts.lane(names[i]) end
    if #names > 0 then
      call('UNLINK', unpack(doomed))
      try('ZREM', key.hosts, unpack(names))
      return 0
    end
    names = every_other(try('HSCAN', key.batches, 0, 'COUNT', most)[2] or names)
    for i = 1, #names do doomed[i] = batches.key_of(names[i]) end
    if #names > 0 then
      call('UNLINK', unpack(doomed))
      try('HDEL', key.batches, unpack(names))
      return 0
    end
    if sets > 0 and remove_sets(sets, math.max(0, sets - most)) then return 0 end
    for i = 1, #NAMES do doomed[i] = named(NAMES[i]) end
    call('UNLINK', key.meta, unpack(doomed))
    -- who waits is told when no state holds the tasks any more
    local waits = every_other(try('HSCAN', key.awaited, 0, 'COUNT', most)[2] or names)
    if #waits > 0 then
      results.tell_clients(waits)
      return 0
    end
    call('UNLINK', key.awaited)
    return 1
  end)
end
