-- requeue_expired: take back tasks whose lease ran out. Costs what has expired, never what is in flight.
-- ARGS  1 call id   2 age of the call, ms   3 at most, number   4 expected, ms: the server time that the client
--       expects, or 0
-- Reply {now ms, taken back number, gone to failed number, more 0 or 1, given up *}: more: there may be more; given up:
--       the ids of up to ten that went to failed
verb('requeue_expired', {flags = {'allow-oom'}}, function()
  local n, expected, longest = tonumber(args[3]), tonumber(args[4]), number(setting.lease_ms, 0)
  -- a clock that stepped back would make leases longer than anybody asked for
  if longest > 0 then
    local beyond = call('ZRANGEBYSCORE', key.leases, '(' .. (now + longest + 1000), '+inf', 'LIMIT', 0, n)
    some('ZADD', key.leases, alike(beyond, now + longest))
  end
  local ids = call('ZRANGEBYSCORE', key.leases, '-inf', now, 'LIMIT', 0, n)
  local jumped = longest > 0 and expected > 0 and now - expected > math.max(500, math.min(2000, longest / 2))
  if #ids == 0 and not (jumped and call('EXISTS', key.leases) == 1) then return {now, 0, 0, 0} end
  local grace_until = leases.grace(longest, jumped)
  if now < grace_until then
    call('HDEL', key.meta, 'wake_at')
    -- a live worker's extension moves its lease past this; what stays is taken back when the grace ends
    wake.rouse(grace_until)
    return {now, 0, 0, 0}
  end
  local back, spent = leases.crash(ids, call('HMGET', key.owners, unpack(ids)), 'the lease ran out')
  count_up(key.stats, 'expired', back + #spent)
  return {now, back, #spent, #ids == n and 1 or 0, unpack(spent, 1, math.min(10, #spent))}
end)
