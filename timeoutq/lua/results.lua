-- results: what the last run of a task has given, kept for a time, and the clients that wait for tasks to end. A queue
-- uses this as soon as a result is written or a client waits
-- result:ID       STRING with a TTL: the result, as its worker has written it; empty if the server had no memory for
--                 it. That of a task of a batch is kept as long as the batch is kept after its end, at least
-- record:ID       STRING with a TTL: of a call whose result is kept, a line for each attempt that has ended, 20 at most:
--                 attempt, crashes before it, start (ms), put (ms), function, how it ended, end (ms), worker and error, with
--                 - for what is not known. How: a done, f failed, F failed for good, x crashed, X once too often, c
--                 cancelled, e expired: it never began. A queue has `records` in `uses` as soon as it has one
-- ended           LIST: the ids of the last calls with a record that have ended; those of the newest 500 are read
-- awaited         of each task that is waited for: the names of the clients that wait, with blanks between them
-- answers:CLIENT  LIST with a TTL: tasks that have ended and that this client waited for; 10000 at most
do
  local MOST_TOLD
  local FAILED_KEPT = 604800000 -- ms for which a record is kept behind an attempt that has failed: as results of failures
  results.MOST_NAMES, MOST_TOLD = 8490, 170000 -- bytes of names: of one task, five hundred clients; in one call, ten thousand

  function results.key_of(id) return named('result:' .. id) end
  function results.record_of(id) return named('record:' .. id) end

  -- ending: how an attempt has ended, now, and the worker of the token
  local function ending(how, token)
    return ' ' .. how .. ' ' .. now .. ' ' .. (string.match(token or '', '^[^#%s]+') or '-') .. ' '
  end

  -- more: give a record with one more line. The first attempt begins a record
  local function more(name, line, message)
    if message then line = line .. string.sub(string.match(message, '^[^\n]*'), 1, 300) end
    local before = string.sub(line, 1, 4) ~= '1 0 ' and call('GET', name)
    if not before then return line end
    local _, lines = string.gsub(before, '\n', '\n')
    if lines > 18 then before = string.gsub(before, '\n[^\n]*', '', 1) end
    return before .. '\n' .. line
  end

  -- note: an attempt has ended that leaves no result. `said` is what its worker says of it; false if nobody does, because
  -- it was cut off, or there was none
  function results.note(id, said, how, token, message)
    local name = results.record_of(id)
    if not said then
      local failed, crashed = call('HGET', key.attempts, id), call('HGET', key.crashes, id)
      said = number(failed, 0) + 1 .. ' ' .. number(crashed, 0) .. ' - - -'
    end
    call('PSETEX', name, FAILED_KEPT, more(name, said .. ending(how, token), message))
    settings.use('records', true)
  end

  -- list: these calls have ended, and have records
  function results.list(ids)
    if #ids == 0 then return end
    if call('LPUSH', key.ended, unpack(ids)) > 1000 then call('LTRIM', key.ended, 0, 499) end
    settings.use('records', true)
  end

  -- unrecord: these tasks leave no record
  function results.unrecord(ids, fresh)
    local gone = {}
    for i = 1, has('records') and #ids or 0 do
      if not (fresh and fresh[ids[i]]) then gone[#gone + 1] = results.record_of(ids[i]) end
    end
    if #gone > 0 then call('DEL', unpack(gone)) end
  end

  -- kept_for: the least ms that a result of a task of these batches is kept, for their callbacks; a day before the seal
  local function kept_for(names)
    local ms = 0
    for name in string.gmatch(names, '%S+') do
      local one = batches.get(name)
      ms = math.max(ms, one and one.state == 's' and one.keep or 86400000)
    end
    return ms
  end

  -- said_of: what a worker says of the attempt of its i-th lease, or nil. A full server begins no record
  function results.said_of(id, i, given)
    local said = given.records and given.records[i] or ''
    return said ~= '' and (not given.full or call('EXISTS', results.record_of(id)) == 1) and said or nil
  end

  -- keep: write the results of runs that are about to end (which[i]), and their records, if they end in a way (`how`,
  -- tokens, errors); gives the tasks that have a new one
  function results.keep(ids, which, given, how, tokens, errors)
    local kept, times, least, over = {}, given.times or {}, {}, {}
    local names_of, values_of, last, ends = {}, {}, nil, nil -- what is kept, by its time
    local of = has('batches') and call('HMGET', key.batch_of, unpack(ids)) or {}
    for i = 1, #ids do
      local body, names = given.results[i], of[i]
      if which[i] and body and not kept[ids[i]] then
        if names then least[names] = least[names] or kept_for(names) end
        local ms = math.max(1, number(times[i], 3600000), names and least[names] or 0)
        if not names_of[ms] then names_of[ms], values_of[ms] = {}, {} end
        local keys, values = names_of[ms], values_of[ms]
        keys[#keys + 1], values[#values + 1] = results.key_of(ids[i]), given.full and '' or body
        if given.full then count_up(key.stats, 'results_lost', 1) end
        kept[ids[i]] = true
        local said = results.said_of(ids[i], i, given)
        if said then
          if tokens[i] ~= last then last, ends = tokens[i], ending(how, tokens[i]) end
          local name = results.record_of(ids[i])
          keys[#keys + 1], values[#values + 1] = name, more(name, said .. ends, errors and errors[i])
          over[#over + 1] = ids[i]
        end
      end
    end
    for ms, keys in pairs(names_of) do leases.set(keys, values_of[ms], ms) end
    results.list(over)
    if next(kept) then settings.use('results', true) end
    return kept
  end

  -- tell_clients: tell the clients that wait for these tasks. A client that is not told asks again by itself
  function results.tell_clients(ids)
    local waits, gone, answers, told = call('HMGET', key.awaited, unpack(ids)), {}, {}, 0
    for i = 1, #ids do
      if waits[i] then gone[#gone + 1], told = ids[i], told + #waits[i] end
      -- those who wait for what is too much for one call are not told
      for client in string.gmatch(told <= MOST_TOLD and waits[i] or '', '%S+') do
        answers[client] = answers[client] or {}
        table.insert(answers[client], ids[i])
      end
    end
    some('HDEL', key.awaited, gone)
    for client, ended in pairs(answers) do
      local list = named('answers:' .. client)
      if call('RPUSH', list, unpack(ended)) > 10000 then call('LTRIM', list, -10000, -1) end
      call('PEXPIRE', list, 60000)
    end
  end

  -- tell_ended: these tasks have ended. Results of earlier runs go, but for tasks in `fresh`; clients that wait are
  -- told; and the batches of these tasks count them, `well` if they are done: then they keep no record without a result
  function results.tell_ended(ids, fresh, well)
    if #ids == 0 then return end
    if well then results.unrecord(ids, fresh) end
    if has('results') then
      local old = {}
      for i = 1, #ids do
        if not (fresh and fresh[ids[i]]) then old[#old + 1] = results.key_of(ids[i]) end
      end
      if #old > 0 then call('DEL', unpack(old)) end
      results.tell_clients(ids)
    end
    if has('batches') then results.tell_ended(batches.end_in(ids, well)) end
  end
end
