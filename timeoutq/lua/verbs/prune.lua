-- prune: drop the done tasks that keep_done does not keep: those that are too old, or too many. Also give a turn again
-- to hosts whose turn lies farther ahead than their delay allows, drop the oldest entries of an event log that is too
-- long, and forget the ids of calls that are older than a minute: on an idle queue no other call does that.
-- ARGS  1 call id   2 age of the call, ms   3 at most, number   4 cursor: where the dating of done tasks goes on, 0 at
--       first
-- Reply {pruned number, cursor, more 0 or 1, converting 0 or 1}: more: there may be more to prune; converting:
--       `convert` has not come to its end
do
  -- far_turns: a clock that stepped back leaves hosts whose turn is far away, as only that of a blocked host may be.
  -- Gives whether the first of them has an earlier turn now
  local function far_turns(n)
    if not polite then return false end
    local beyond = now + number(string.match(rules, '^%d+')) + 1000
    local far = call('ZRANGEBYSCORE', key.hosts, '(' .. beyond, '(+inf', 'WITHSCORES', 'LIMIT', 0, n)
    if #far == 0 then return false end
    hosts.load(every_other(far))
    ready.turn()
    return call('ZSCORE', key.hosts, far[1]) ~= far[2]
  end

  verb('prune', {flags = {'allow-oom'}}, function()
    local n = tonumber(args[3])
    local cursor, undated = done.date(n, args[4])
    local old = done.outdated(n)
    local stale = math.min(8 * n, call('ZCOUNT', key.calls, '-inf', now - 60000))
    if #old < n and has('until') then
      local over = call('ZRANGEBYSCORE', key.done_until, '-inf', now, 'LIMIT', 0, n - #old)
      for i = 1, #over do old[#old + 1] = over[i] end
    end
    if #old > 0 then
      done.undo(old)
      done.undate(old)
      priority.forget(old)
      count_up(key.stats, 'pruned', #old)
    end
    if has('until') and call('EXISTS', key.done_until) == 0 then settings.use('until', false) end
    if has('runtime') and call('EXISTS', key.runtime) == 0 then settings.use('runtime', false) end
    local early = far_turns(n)
    if stale > 0 then call('ZPOPMIN', key.calls, stale) end
    if has('events') and events.trim() then early = true end
    local more = #old == n or undated or early or stale == 8 * n
    local converting = call('HEXISTS', key.meta, 'converting') == 1 or hosts.ends()
    return {#old, cursor, more and 1 or 0, converting and 1 or 0}
  end)
end
