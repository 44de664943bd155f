-- restore_hosts: give hosts of an export their rules and counts back; what the queue knows of a host already stays, so
-- it may run again. A host that has any rule of its own keeps its rules; one that has had a visit keeps its counts.
-- ARGS  1 call id, nonce   2 age of the call, ms
--       3.. (host, delay, per_host, budget, visits, failures, next allowed, blocked until, flag, reason) *: what
--       `describe_hosts` replies of it, '' for nil
-- Reply how many of the hosts have taken something over, number
-- Reply nil: the queue is not polite
verb('restore_hosts', {}, function()
  if not polite then return false end
  local names, count = {}, 0
  for i = 3, #args, 10 do names[#names + 1] = args[i] end
  local known, usual = hosts.load(names), tonumber(string.match(rules, '^%d+'))
  if calls.replayed(args[1]) then return #names end
  for i = 3, #args, 10 do
    local one, taken = known[args[i]], false
    local delay, per_host, budget = tonumber(args[i + 1]), tonumber(args[i + 2]), tonumber(args[i + 3])
    local visits, failed, next_ms, flag = tonumber(args[i + 4]), tonumber(args[i + 5]), tonumber(args[i + 6]), args[i + 8]
    local has_rules = one.own_delay or one.own_per_host or one.budget or one.flag == 'b' or one.flag == 'x'
    if not has_rules and (delay or per_host or budget or flag ~= '-') then
      one.own_delay, one.own_per_host, one.budget = delay, per_host, budget
      one.until_ms, one.flag, one.reason, taken = tonumber(args[i + 7]), flag, args[i + 9], true
      hosts.write_policy(one)
      hosts.recall(one) -- what was handed over by other rules and not claimed yet waits again
    end
    if one.visits == 0 and visits > 0 then
      one.visits, one.moved, taken = visits, true, true
      if failed > 0 then call('HSET', key.host_failures, one.name, failed) end
    end
    -- a pause after the last visit goes on, no longer than the host's delay
    next_ms = math.min(next_ms, now + (one.own_delay or usual))
    if next_ms > math.max(now, one.next_ms or 0) then
      hosts.rest_until(one, next_ms)
      taken = true
    end
    if taken then count = count + 1 end
  end
  ready.turn()
  calls.note(args[1])
  return count
end)
