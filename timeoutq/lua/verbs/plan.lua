-- plan: a cleaner asks how long it may sleep, and promises to look again by then.
-- ARGS  1 call id   2 age of the call, ms   3 longest sleep, ms
-- Reply {now ms, look again at ms, the µs of now that are no whole ms number, [next tick ms, cancelled number]}: the
--       last two on a queue with schedules or cancelled tasks: the next tick, 0 for none, and how many tasks in
--       progress were ever cancelled
do
  -- note_history: a line with the counters each ten seconds, for twenty minutes; and whenever a minute or an hour
  -- begins, a line that counts the states, too: minutes for a day, hours for 90 days. Whoever comes first writes the
  -- line. A clock that has stepped back begins a minute once more: readers take the newer line
  local function note_history()
    local function noted(list)
      return number(string.match(call('LINDEX', list, 0) or '', '^%d+'), 0)
    end
    if math.abs(now - noted(key.history)) < 10000 then return end
    local c = call('HMGET', key.stats, 'put', 'claimed', 'acked', 'failed', 'expired')
    local line, long = whole(now), nil
    for i = 1, 5 do line = line .. ' ' .. whole(number(c[i], 0)) end
    call('LTRIM', key.history, 0, 118)
    call('LPUSH', key.history, line)
    for _, of in ipairs({{'minutes', 60000, 1440}, {'hours', 3600000, 2160}}) do
      local list, ms, most = named(of[1]), of[2], of[3]
      if math.floor(noted(list) / ms) ~= math.floor(now / ms) then
        long = long or string.format('%s %.0f %.0f %.0f %.0f %.0f %.0f', line, call('SCARD', key.todos), call('ZCARD', key.scheduled),
          call('SCARD', key.in_progress), done.count(), call('SCARD', key.failed), call('SCARD', key.waiting))
        call('LTRIM', list, 0, most - 2)
        call('LPUSH', list, long)
      end
    end
  end

  verb('plan', {flags = {'allow-oom'}}, function()
    local at, longest = now + tonumber(args[3]), number(setting.lease_ms, 0)
    -- asked also while nothing runs out, so that a failover and the way back are two
    local grace_until = leases.grace(longest, false)
    local deadline = wake.first(key.leases)
    if deadline then
      if now < grace_until then deadline = math.max(deadline, grace_until) end
      at = math.min(at, deadline)
      if longest > 0 and leases.too_long(longest) then at = now end
    end
    at = math.min(at, wake.first(key.scheduled) or at)
    at = math.min(at, hosts.next_turn() or at)
    if not schema and call('EXISTS', key.workers) == 0 then return {now, at, time[2] % 1000} end -- purged: no key comes back
    local wake_at = wake.at()
    if wake_at < at or wake_at > now + 60000 then call('HSET', key.meta, 'wake_at', at) end
    note_history()
    if not (has('schedules') or has('cancel')) then return {now, at, time[2] % 1000} end
    local tick = has('schedules') and wake.first(key.ticks) or 0
    return {now, at, time[2] % 1000, tick, has('cancel') and number(call('HGET', key.stats, 'cancelling'), 0) or 0}
  end)
end
