-- done: the door to the tasks that are done. Only this part and `ages` read or write the set `done`, and `done_at`: when each
-- task was done, which is kept only if keep_done is a time or a number of tasks. On a queue with keep_done "compact", which keeps no
-- ids, the functions have the same names, and are those of the room `compact`. This is decided once, when the script begins
-- is_done       is this task done?
-- done_among    which of these tasks are done, as a 1 for each task that is
-- finish        make tasks of the set `from` done: each ids[i] where which[i] is true. Gives those that were in `from`; for the others,
--               which[i] becomes false
-- undo          these tasks are no longer done
-- revive        move a done task into another set; undate() forgets when it was done. Gives 1, or 0 for a task that is not done
-- dates_done: does the queue keep when tasks were done?
do
  local function dates_done()
    local keep_done = setting.keep_done or 'forever'
    return keep_done ~= 'forever' and keep_done ~= 'no' and keep_done ~= 'compact'
  end

  -- undate: forget when these tasks were done
  function by_id.undate(ids)
    call('ZREM', key.done_at, unpack(ids))
    lasting.forget(ids)
  end

  function by_id.has(id)
    return call('SISMEMBER', key.done, id) == 1
  end

  function by_id.among(ids)
    if #ids > 8 and call('EXISTS', key.done) == 0 then return {} end
    return call('SMISMEMBER', key.done, unpack(ids))
  end

  function by_id.finish(from, ids, which)
    local keeps, ended = setting.keep_done ~= 'no', {}
    for i = 1, #ids do
      if which[i] then
        if (keeps and quiet('SMOVE', from, key.done, ids[i]) or not keeps and quiet('SREM', from, ids[i])) == 1 then
          ended[#ended + 1] = ids[i]
        else
          which[i] = false
        end
      end
    end
    if logging then events.moved(ended, from, keeps and key.done) end
    if not keeps and #ended > 0 then priority.forget(ended) end
    if dates_done() and #ended > 0 then
      local times = {}
      for i = 1, #ended do
        times[2 * i - 1], times[2 * i] = now, ended[i]
      end
      call('ZADD', key.done_at, unpack(times))
    end
    return ended
  end

  function by_id.undo(ids)
    call('SREM', key.done, unpack(ids))
  end

  function by_id.revive(id, into)
    return call('SMOVE', key.done, into, id)
  end

  -- finish_bare: finish() where the tasks at some places leave no id in `done`
  function by_id.finish_bare(from, ids, which, places)
    local bare, is_bare, kept = {}, {}, {}
    for i = 1, #ids do kept[i] = which[i] end
    for _, place in ipairs(places) do
      local at = tonumber(place) or 0
      if kept[at] then is_bare[at], kept[at] = true, false end
    end
    -- goes first: it fails on keys of a foreign type before it writes
    local ended = done.finish(from, ids, kept)
    for i = 1, #ids do
      if is_bare[i] then
        which[i] = call('SREM', from, ids[i]) == 1
        if which[i] then bare[#bare + 1] = ids[i] end
      else
        which[i] = kept[i]
      end
    end
    if #bare > 0 then priority.forget(bare) end
    for i = 1, #bare do ended[#ended + 1] = bare[i] end
    return ended
  end

  -- finish_lasting: finish_bare() where other tasks stay in `done` for a time, whatever keep_done says: spans[i] is for how many ms
  function by_id.finish_lasting(from, ids, which, places, spans)
    local rows, kept, stays, ended = {}, {}, {}, {}
    for i = 1, #ids do
      stays[i] = which[i] and spans[i] and true
      kept[i] = which[i] and not stays[i]
      if stays[i] then rows[#rows + 1], rows[#rows + 2] = now + tonumber(spans[i]), ids[i] end
    end
    -- goes before the tasks: one that is done without its time would block its id for ever
    if #rows > 0 then lasting.keep(rows) end
    for i = 1, #ids do
      if stays[i] then
        which[i] = call('SMOVE', from, key.done, ids[i]) == 1
        if which[i] then ended[#ended + 1] = ids[i] end
      end
    end
    local others = done.finish_bare(from, ids, kept, places)
    for i = 1, #ids do
      if not stays[i] then which[i] = kept[i] end
    end
    for i = 1, #others do ended[#ended + 1] = others[i] end
    return ended
  end

  -- ages: how many tasks are done, and since when; the rest of the door that `done` begins, for those who look and clean up
  function by_id.count()
    return call('SCARD', key.done)
  end

  function by_id.times(ids)
    return call('ZMSCORE', key.done_at, unpack(ids))
  end

  -- keep: tasks that are in no state are done, each since its time; false is now. ends[i] is until when ids[i] blocks its id; nil or false:
  -- keep_done says so
  function by_id.keep(ids, times, ends)
    local rows, ending = {}, {}
    for i = 1, #ids do
      if ends and ends[i] then
        ending[#ending + 1], ending[#ending + 2] = ends[i], ids[i]
      else
        rows[#rows + 1], rows[#rows + 2] = times[i] or now, ids[i]
      end
    end
    if #ending > 0 then lasting.keep(ending) end
    call('SADD', key.done, unpack(ids))
    if dates_done() and #rows > 0 then call('ZADD', key.done_at, unpack(rows)) end
  end

  -- dated_count: how many done tasks have a time
  local function dated_count()
    return call('ZCARD', key.done_at) + (has('until') and call('ZCARD', key.done_until) or 0)
  end

  -- date: a task that was done while all tasks were kept has no time: its age counts from now. Gives where the walk through the
  -- done tasks goes on, and whether tasks without a time are left
  function by_id.date(n, cursor)
    if not dates_done() or call('SCARD', key.done) <= dated_count() then return '0', false end
    local page, times = call('SSCAN', key.done, cursor, 'COUNT', n), {}
    local ids = lasting.others(page[2])
    for i = 1, #ids do
      times[2 * i - 1], times[2 * i] = now, ids[i]
    end
    if #times > 0 then call('ZADD', key.done_at, 'NX', unpack(times)) end
    return page[1], call('SCARD', key.done) > dated_count()
  end

  -- outdated: n tasks at most that keep_done does not keep; a setting that cannot be read keeps all
  function by_id.outdated(n)
    local keep_done = setting.keep_done or 'forever'
    local kind, most = string.sub(keep_done, 1, 1), number(string.sub(keep_done, 2))
    if keep_done == 'no' then return lasting.others(call('SRANDMEMBER', key.done, n)) end
    if most and kind == 't' then return call('ZRANGEBYSCORE', key.done_at, '-inf', now - most, 'LIMIT', 0, n) end
    local over = most and kind == 'n' and call('ZCARD', key.done_at) - most or 0
    return over > 0 and call('ZRANGE', key.done_at, 0, math.min(over, n) - 1) or {}
  end
end
