-- plan: a cleaner asks how long it may sleep, and promises to look again by then.
-- KEYS  in_progress scheduled leases lock meta stats history
-- PARTS open server grace turns ticking
-- SOUND stats; history
-- ARGV  1 call id   2 age of the call, ms   3 longest sleep, ms
-- Reply {now ms, look again at ms, the µs of now that are no whole ms; on a queue with schedules or cancelled tasks,
--       the next tick ms, 0 for none, and how many tasks in progress were ever cancelled}
local at = now + tonumber(ARGV[3])
local lease = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')
local due = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')
sound()
local longest = longest_lease or 0
-- asked also while nothing runs out, so that a failover and the way back are two
local grace_until = grace(longest, false)
local deadline = moment(lease[2])
if deadline then
  if now < grace_until then deadline = math.max(deadline, grace_until) end
  at = math.min(at, deadline)
  -- a clock that stepped back made leases longer than anybody asked for: they are cut at once
  local last = redis.call('ZRANGE', leases, -1, -1, 'WITHSCORES')
  if longest > 0 and (moment(last[2]) or math.huge) > now + longest + 1000 then at = now end
end
at = math.min(at, moment(due[2]) or at)
at = math.min(at, next_turn() or at)
if wake_at < at or wake_at > now + 60000 then
  redis.call('HDEL', meta, 'wake_at') -- also makes a full server allow what follows, as even_when_full() does
  redis.call('HSET', meta, 'wake_at', at)
end
-- counters of the last twenty minutes, for the dashboard: a line each ten seconds, whoever comes first
local last = redis.call('LINDEX', history, 0)
local noted = last and number(string.match(last, '^%d+'), 0) or 0
if math.abs(now - noted) >= 10000 then
  local c = redis.call('HMGET', stats, 'put', 'claimed', 'acked', 'failed', 'expired')
  local line = tostring(now)
  for i = 1, 5 do line = line .. ' ' .. string.format('%.0f', number(c[i], 0)) end
  redis.call('LTRIM', history, 0, 118)
  redis.call('LPUSH', history, line)
end
if has('schedules') or has('cancel') then
  return {now, at, time[2] % 1000, next_tick() or 0, has('cancel') and number(redis.call('HGET', stats, 'cancelling'), 0) or 0}
end
return {now, at, time[2] % 1000}
