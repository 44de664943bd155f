-- plan: a cleaner asks how long it may sleep, and promises to look again by then.
-- ARGS  1 call id   2 age of the call, ms   3 longest sleep, ms
-- Reply {now ms, look again at ms, the µs of now that are no whole ms number, [next tick ms, cancelled number]}: the last two on a queue with schedules or
--       cancelled tasks: the next tick, 0 for none, and how many tasks in progress were ever cancelled
verb('plan', {flags = {'allow-oom'}}, function()
  local at = now + tonumber(args[3])
  local lease = call('ZRANGE', key.leases, 0, 0, 'WITHSCORES')
  local due = call('ZRANGE', key.scheduled, 0, 0, 'WITHSCORES')
  local longest = number(setting.lease_ms, 0)
  -- asked also while nothing runs out, so that a failover and the way back are two
  local grace_until = leases.grace(longest, false)
  local deadline = moment(lease[2])
  if deadline then
    if now < grace_until then deadline = math.max(deadline, grace_until) end
    at = math.min(at, deadline)
    -- a clock that stepped back made leases longer than anybody asked for: they are cut at once
    local last = call('ZRANGE', key.leases, -1, -1, 'WITHSCORES')
    if longest > 0 and (moment(last[2]) or math.huge) > now + longest + 1000 then at = now end
  end
  at = math.min(at, moment(due[2]) or at)
  at = math.min(at, hosts.next_turn() or at)
  local wake_at = wake.at()
  if wake_at < at or wake_at > now + 60000 then
    call('HSET', key.meta, 'wake_at', at)
  end
  -- the history: a line with the counters each ten seconds, for twenty minutes; and whenever a minute or an hour begins, a line that
  -- counts the states, too: minutes for a day, hours for 90 days. Whoever comes first writes the line. A clock that has stepped back
  -- begins a minute once more: readers take the newer line
  local last = call('LINDEX', key.history, 0)
  local noted = last and number(string.match(last, '^%d+'), 0) or 0
  if math.abs(now - noted) >= 10000 then
    local c = call('HMGET', key.stats, 'put', 'claimed', 'acked', 'failed', 'expired')
    local line = string.format('%.0f', now)
    for i = 1, 5 do line = line .. ' ' .. string.format('%.0f', number(c[i], 0)) end
    call('LTRIM', key.history, 0, 118)
    call('LPUSH', key.history, line)
    local whole
    for _, of in ipairs({{'minutes', 60000, 1440}, {'hours', 3600000, 2160}}) do
      local newest = call('LINDEX', named(of[1]), 0)
      local at = newest and number(string.match(newest, '^%d+'), 0) or 0
      if math.floor(at / of[2]) ~= math.floor(now / of[2]) then
        -- a state of a foreign type counts as empty: it must not keep the cleaner from its work
        local counted, kept = pcall(done.count)
        local function size(how, set) return number(try(how, set), 0) end
        whole = whole or string.format('%s %.0f %.0f %.0f %.0f %.0f %.0f', line, size('SCARD', key.todos), size('ZCARD', key.scheduled),
          size('SCARD', key.in_progress), counted and kept or 0, size('SCARD', key.failed), size('SCARD', key.waiting))
        call('LTRIM', named(of[1]), 0, of[3] - 2)
        call('LPUSH', named(of[1]), whole)
      end
    end
  end
  if has('schedules') or has('cancel') then
    return {now, at, time[2] % 1000, schedules.next() or 0, has('cancel') and number(call('HGET', key.stats, 'cancelling'), 0) or 0}
  end
  return {now, at, time[2] % 1000}
end)
