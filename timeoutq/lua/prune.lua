-- prune: drop the done tasks that keep_done does not keep: those that are too old, or too many. Also give a turn again to hosts
-- whose turn lies farther ahead than their delay allows, drop the oldest entries of an event log that is too long, and forget the ids
-- of calls that are older than a minute: on an idle queue no other call does that.
-- KEYS  todos done done_at lock meta stats bell alarm calls
-- PARTS open rounds done ages trim
-- SOUND stats alarm todos done done_at calls
-- ARGV  1 call id   2 age of the call, ms   3 at most, number   4 cursor: where the dating of done tasks goes on, 0 at first
-- Reply {pruned number, cursor, more 0 or 1, converting 0 or 1}: more: there may be more to prune; converting: `convert` has not come to its end
local n = tonumber(ARGV[3])
sound()
local cursor, undated = date(n, ARGV[4])
local old = outdated(n)
local stale = math.min(8 * n, redis.call('ZCOUNT', calls, '-inf', now - 60000))
if #old < n and has('until') then
  local over = outlasted(n - #old)
  for i = 1, #over do old[#old + 1] = over[i] end
end
if #old > 0 then
  undo(old)
  undate(old)
  if forget_priorities then forget_priorities(old) end
  count_up(stats, 'pruned', #old)
end
if has('until') then end_lasting() end
local early = far_turns(n)
if stale > 0 then redis.call('ZPOPMIN', calls, stale) end
if stale == 8 * n then early = true end
if has('events') and rarely('trim_log')() then early = true end
return {#old, cursor, (#old == n or undated or early) and 1 or 0, converting() and 1 or 0}
