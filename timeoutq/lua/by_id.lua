-- by_id: the tasks that are done, by their ids. Verbs call these functions by the name `done`. On a queue with
-- keep_done "compact", which keeps no ids, some functions of the same names in by_print.lua take their place: `begin`
-- decides.
-- done     SET of the tasks   done_at  ZSET: when each was done, ms, only if keep_done is a time or a number of tasks
do
  -- dates: does the queue keep when tasks were done?
  local function dates()
    return string.find(setting.keep_done or '', '^[tn]') and setting.keep_done ~= 'no'
  end

  -- has: is this task done? among: which of these are, as a 1 for each that is
  function by_id.has(id) return call('SISMEMBER', key.done, id) == 1 end

  function by_id.among(ids)
    if #ids > 8 and call('EXISTS', key.done) == 0 then return {} end
    return call('SMISMEMBER', key.done, unpack(ids))
  end

  function by_id.count() return call('SCARD', key.done) end

  -- move: ids[i] where which[i] go to another set, or nowhere; gives those that were there; which[i] says so afterwards
  local function move(from, into, ids, which)
    local held = not into and #ids > 1 and quiet('SMISMEMBER', from, unpack(ids))
    for i = 1, #ids do
      which[i] = which[i] and (into and quiet('SMOVE', from, into, ids[i]) or held and held[i] or quiet('SREM', from, ids[i])) == 1
    end
    local moved = chosen(ids, which)
    if held and #moved > 0 and quiet('SREM', from, unpack(moved)) < #moved then
      local seen = {} -- an id is there twice
      for i = 1, #ids do
        which[i], seen[ids[i]] = which[i] and not seen[ids[i]], seen[ids[i]] or which[i]
      end
      moved = chosen(ids, which)
    end
    if logging then events.moved(moved, from, into) end
    if not into then priority.forget(moved) end
    return moved
  end

  -- finish: tasks of the set `from` are done, or leave no id if keep_done says so; else as `move`
  function by_id.finish(from, ids, which)
    local ended = move(from, setting.keep_done ~= 'no' and key.done, ids, which)
    if dates() then some('ZADD', key.done_at, alike(ended, now)) end
    return ended
  end

  -- finish_each: `finish`, but the places `bare` leave no id, {} for all, and ids[i] stays for spans[i] ms, whatever
  -- keep_done says
  function by_id.finish_each(from, ids, which, bare, spans)
    local lasts, kept, gone, rows = {}, {}, {}, {}
    local all = bare and #bare == 0
    if all and not next(spans) then return move(from, nil, ids, which) end
    for _, place in ipairs(bare or none) do gone[tonumber(place) or 0] = true end
    for i = 1, #ids do
      lasts[i] = which[i] and spans[i] and true
      gone[i] = which[i] and not lasts[i] and (all or gone[i])
      kept[i] = which[i] and not lasts[i] and not gone[i]
      if lasts[i] then rows[#rows + 1], rows[#rows + 2] = now + tonumber(spans[i]), ids[i] end
    end
    lasting.keep(rows) -- goes before the tasks: one that is done without its time would block its id for ever
    local ended = {}
    for _, moved in ipairs({move(from, key.done, ids, lasts), done.finish(from, ids, kept), move(from, nil, ids, gone)}) do
      for i = 1, #moved do ended[#ended + 1] = moved[i] end
    end
    for i = 1, #ids do which[i] = lasts[i] or kept[i] or gone[i] end
    return ended
  end

  -- undo: these tasks are no longer done; undate: forget when they were done
  function by_id.undo(ids) call('SREM', key.done, unpack(ids)) end

  function by_id.undate(ids)
    call('ZREM', key.done_at, unpack(ids))
    if has('until') then call('ZREM', key.done_until, unpack(ids)) end
  end

  function by_id.times(ids) return call('ZMSCORE', key.done_at, unpack(ids)) end

  -- revive: move a done task into another set
  function by_id.revive(id, into) return call('SMOVE', key.done, into, id) end

  -- keep: tasks in no state are done since times[i] (or now); they block their ids until ends[i], false for keep_done
  function by_id.keep(ids, times, ends)
    local rows, ending = {}, {}
    for i = 1, #ids do
      local into = ends[i] and ending or rows
      into[#into + 1], into[#into + 2] = ends[i] or times[i] or now, ids[i]
    end
    lasting.keep(ending)
    call('SADD', key.done, unpack(ids))
    if dates() then some('ZADD', key.done_at, rows) end
  end

  -- undated: are there done tasks without a time?
  local function undated()
    local dated = call('ZCARD', key.done_at) + (has('until') and call('ZCARD', key.done_until) or 0)
    return call('SCARD', key.done) > dated
  end

  -- date: done tasks without a time get one; gives where this goes on, and whether some are left
  function by_id.date(n, cursor)
    if not dates() or not undated() then return '0', false end
    local page = call('SSCAN', key.done, cursor, 'COUNT', n)
    local times = alike(lasting.others(page[2]), now)
    if #times > 0 then call('ZADD', key.done_at, 'NX', unpack(times)) end
    return page[1], undated()
  end

  -- since: keep_done keeps no task that was done before this time; nil if it keeps all, or none
  function by_id.since()
    local kind, most = string.match(setting.keep_done or '', '^(.)(%d+)$')
    if kind == 't' then return now - most + 1 end
    return kind == 'n' and call('ZRANGE', key.done_at, -most, -most, 'WITHSCORES')[2] or nil
  end

  -- outdated: n tasks at most that keep_done does not keep
  function by_id.outdated(n)
    local kind, most = string.match(setting.keep_done or '', '^(.)(%d*)')
    if setting.keep_done == 'no' then return lasting.others(call('SRANDMEMBER', key.done, n)) end
    most = number(most)
    if most and kind == 't' then return call('ZRANGEBYSCORE', key.done_at, '-inf', now - most, 'LIMIT', 0, n) end
    local over = most and kind == 'n' and call('ZCARD', key.done_at) - most or 0
    return over > 0 and call('ZRANGE', key.done_at, 0, math.min(over, n) - 1) or {}
  end
end
