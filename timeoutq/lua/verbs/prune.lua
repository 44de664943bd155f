-- prune: drop the done tasks that keep_done does not keep: those that are too old, or too many. Also give a turn again to hosts
-- whose turn lies farther ahead than their delay allows, drop the oldest entries of an event log that is too long, and forget the ids
-- of calls that are older than a minute: on an idle queue no other call does that.
-- ARGS  1 call id   2 age of the call, ms   3 at most, number   4 cursor: where the dating of done tasks goes on, 0 at first
-- Reply {pruned number, cursor, more 0 or 1, converting 0 or 1}: more: there may be more to prune; converting: `convert` has not come to its end
verb('prune', {flags = {'allow-oom'}}, function()
  local n = tonumber(args[3])
  local cursor, undated = done.date(n, args[4])
  local old = done.outdated(n)
  local stale = math.min(8 * n, call('ZCOUNT', key.calls, '-inf', now - 60000))
  if #old < n and has('until') then
    local over = lasting.over(n - #old)
    for i = 1, #over do old[#old + 1] = over[i] end
  end
  if #old > 0 then
    done.undo(old)
    done.undate(old)
    priority.forget(old)
    count_up(key.stats, 'pruned', #old)
  end
  if has('until') then lasting.ends() end
  local early = hosts.far_turns(n)
  if stale > 0 then call('ZPOPMIN', key.calls, stale) end
  if stale == 8 * n then early = true end
  if has('events') and events.trim() then early = true end
  return {#old, cursor, (#old == n or undated or early) and 1 or 0, hosts.converting() and 1 or 0}
end)
