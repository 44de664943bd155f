-- batches: tasks whose ends are counted together; when all of them have ended, one more task becomes ready, the batch's
-- callback. A queue uses this as soon as a put has named a batch
-- batches     of each batch its record: words with blanks between them. 1 state: o open, s sealed, e ended, b broken:
--             it has ended, and its callback went to failed, because a task was not done   2 the callback becomes ready
--             when all tasks have e ended, or are d done; - while the batch is open   3 for how many ms the batch is
--             kept after its end   4 when the state changed, or a task joined, ms   5 a digest of the call that has
--             sealed it, or -   6 the callback's id, if there is a callback
-- batch:NAME  all tasks of a batch, each with its place, from 1 on; 10^9 is added when the task is done, and 2 * 10^9
--             when it has ended in any other way
-- batch_of    of each task that has not ended since it joined a batch: the names of its batches
-- From the seal on, the callback is in `scheduled`, and due in the year 9999: so it is in one state, like any other
-- task. Whoever ends the last task of the batch makes the callback due. Until then, no put changes the callback.
do
  batches.DONE, batches.LOST, batches.WAITS = 1000000000, 2000000000, 253370764800000

  function batches.key_of(name)
    return named('batch:' .. name)
  end

  -- unnamed: what is wrong with the name of a batch, as an error; nil if nothing is
  function batches.unnamed(name)
    if #name <= 64 and string.find(name, '^[%w._:-]+$') then return nil end
    return {err = 'BATCH the name of a batch is 1 to 64 of A-Z a-z 0-9 . _ : -'}
  end

  -- read: the record that a text holds; nil for none
  function batches.read(text)
    local state, on, keep, at, rev, callback = string.match(text or '', '^(%S+) (%S+) (%S+) (%S+) (%S+) ?(.*)$')
    if not state then return nil end
    return {state = state, on = on, keep = number(keep, 0), at = number(at, 0), rev = rev, callback = callback}
  end

  function batches.get(name)
    return batches.read(call('HGET', key.batches, name))
  end

  local function write(name, one)
    local line = string.format('%s %s %.0f %.0f %s ', one.state, one.on, one.keep, now, one.rev)
    call('HSET', key.batches, name, line .. one.callback)
  end

  -- counts: how many tasks a batch has, how many of them have not ended, and how many have ended but not as done
  function batches.counts(name)
    local set = batches.key_of(name)
    return call('ZCARD', set), call('ZCOUNT', set, '-inf', '(1000000000'), call('ZCOUNT', set, '2000000000', '+inf')
  end

  -- waits: is this scheduled task the callback of a batch that has not ended?
  function batches.waits(id)
    return id ~= '' and moment(call('ZSCORE', key.scheduled, id)) == batches.WAITS
  end

  -- tell_callbacks: where[i] is the state of ids[i]; such a callback gets the letter b instead of s
  function batches.tell_callbacks(ids, where)
    local dues
    for i = 1, #ids do
      if where[i] == 's' then
        dues = dues or call('ZMSCORE', key.scheduled, unpack(ids))
        if moment(dues[i]) == batches.WAITS then where[i] = 'b' end
      end
    end
  end

  -- fail_callback: the callback of a batch will not become ready; gives true if it was waiting for the batch
  function batches.fail_callback(id, message)
    if not batches.waits(id) then return false end
    call('SADD', key.failed, id)
    failures.log(id, 'gave up: ' .. message)
    kinds.note({id})
    call('ZREM', key.scheduled, id)
    count_up(key.stats, 'gave_up', 1)
    return true
  end

  -- close: end a batch that is sealed if all of its tasks have ended; `broken` collects callbacks that went to failed
  local function close(name, broken)
    local one = batches.get(name)
    if not one or one.state ~= 's' then return end
    local all, open, lost = batches.counts(name)
    if open > 0 then return end
    local fails = one.on == 'd' and lost > 0
    local message = string.format('%.0f of the %.0f tasks of batch %s are not done', lost, all, name)
    if fails and batches.fail_callback(one.callback, message) then
      broken[#broken + 1] = one.callback
    elseif not fails and batches.waits(one.callback) then
      call('ZADD', key.scheduled, now, one.callback)
      wake.rouse(now)
    end
    one.state = fails and 'b' or 'e'
    write(name, one)
    call('PEXPIRE', batches.key_of(name), math.max(1, one.keep))
  end

  -- seal: the batch takes no more tasks
  function batches.seal(name, on, keep, digest, callback)
    local broken = {}
    write(name, {state = 's', on = on, keep = tonumber(keep), rev = digest, callback = callback})
    settings.use('batches', true)
    settings.exists()
    close(name, broken)
    results.tell_ended(broken)
  end

  -- end_in: these tasks have ended, `well` if they are done, and leave their batches; gives callbacks that have failed
  function batches.end_in(ids, well)
    local of, tasks_of, names, gone, broken = call('HMGET', key.batch_of, unpack(ids)), {}, {}, {}, {}
    for i = 1, #ids do
      if of[i] then gone[#gone + 1] = ids[i] end
      for name in string.gmatch(of[i] or '', '%S+') do
        if not tasks_of[name] then tasks_of[name], names[#names + 1] = {}, name end
        table.insert(tasks_of[name], ids[i])
      end
    end
    if #gone == 0 then return gone end
    call('HDEL', key.batch_of, unpack(gone))
    for _, name in ipairs(names) do
      local some_of, rows = tasks_of[name], {}
      local places = call('ZMSCORE', batches.key_of(name), unpack(some_of))
      for k = 1, #places do
        local at = number(places[k], batches.DONE)
        if at < batches.DONE then rows[#rows + 1], rows[#rows + 2] = whole(at + (well and batches.DONE or batches.LOST)), some_of[k] end
      end
      if #rows > 0 then
        call('ZADD', batches.key_of(name), unpack(rows))
        close(name, broken)
      end
    end
    return broken
  end

  -- drop: nothing is left of a batch; its tasks stay where they are
  function batches.drop(name)
    call('HDEL', key.batches, name)
    call('UNLINK', batches.key_of(name))
    if call('EXISTS', key.batches, key.batch_of) == 0 then settings.use('batches', false) end
  end

  -- may_join: what join() needs to know, or nil and an error; ends[i] is how a task has ended elsewhere
  function batches.may_join(name, ids, ends)
    local unfit = batches.unnamed(name)
    if unfit then return nil, unfit end
    local one, set = batches.get(name), batches.key_of(name)
    local places, of, size, new = call('ZMSCORE', set, unpack(ids)), call('HMGET', key.batch_of, unpack(ids)), call('ZCARD', set), 0
    for i = 1, #ids do
      if not places[i] then
        local _, many = string.gsub(of[i] or '', '%S+', '')
        new = new + 1
        if many >= 4 and not (ends and ends[i]) then
          return nil, {err = 'BATCH task ' .. shown(ids[i]) .. ' is in four batches that have not ended, and no task can be in more'}
        end
      end
    end
    if new > 0 and one and one.state ~= 'o' then
      return nil, {err = 'BATCH batch ' .. name .. ' is sealed, and takes no more tasks: put them into a batch of another name'}
    elseif size + new > 1000000 then
      return nil, {err = 'BATCH batch ' .. name .. ' would have more than 1000000 tasks: divide it into several batches'}
    end
    return {places = places, of = of, size = size}
  end

  -- join: the tasks become tasks of the batch; one that is done or failed has ended already. Gives how many are new
  function batches.join(name, ids, known, ends)
    local where, rows, lines, size = find.all(ids), {}, {}, known.size
    local joined = {}
    for i = 1, #ids do
      local id = ids[i]
      if not known.places[i] and not joined[id] then
        joined[id], size = true, size + 1
        local ended = ends and ends[i]
          or where[i] == 'd' and batches.DONE or (where[i] == 'f' or not where[i]) and batches.LOST or 0
        rows[#rows + 1], rows[#rows + 2] = whole(size + ended), id
        if ended == 0 then lines[#lines + 1], lines[#lines + 2] = id, (known.of[i] and known.of[i] .. ' ' or '') .. name end
      end
    end
    if #rows == 0 then return 0 end
    write(name, {state = 'o', on = '-', keep = 0, rev = '-', callback = ''})
    call('ZADD', batches.key_of(name), unpack(rows))
    some('HSET', key.batch_of, lines)
    settings.use('batches', true)
    return #rows / 2
  end
end
