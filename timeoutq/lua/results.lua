-- results: what the last run of a task has given, kept for a time, and the clients that wait for tasks to end. A queue uses this as
-- soon as a result is written or a client waits
-- result:ID       STRING with a TTL: the result, as its worker has written it; empty if the server had no memory for it. That of a task
--                 of a batch is kept as long as the batch is kept after its end, at least
-- awaited         of each task that is waited for: the names of the clients that wait, with blanks between them
-- answers:CLIENT  LIST with a TTL: tasks that have ended and that this client waited for; 10000 at most
do
  local MOST_TOLD
  results.MOST_NAMES, MOST_TOLD = 8490, 170000 -- bytes of names: of one task, five hundred clients; in one call, ten thousand

  -- result_of: the name of the key with a task's result. No other place makes such a name
  function results.key_of(id)
    return named('result:' .. id)
  end

  -- kept_for: for how many ms the result of a task of these batches is kept, at least, so that their callbacks can read it: as long as they
  -- are kept after their end; a day before they are sealed
  local function kept_for(names)
    local ms = 0
    for name in string.gmatch(names, '%S+') do
      local text = try('HGET', key.batches, name)
      local one = type(text) == 'string' and batches.read(text)
      ms = math.max(ms, one and one.state == 's' and one.keep or 86400000)
    end
    return ms
  end

  -- keep: write the results of runs that are about to end: bodies[i] is that of ids[i], times[i] for how many ms it is kept; which[i] says
  -- whether the run ends. With `full`, the server has no memory for them: such a task ends with an empty one. Gives the tasks that have
  -- a new result
  function results.keep(ids, which, bodies, times, full)
    local kept = {}
    local of, least = has('batches') and try('HMGET', key.batch_of, unpack(ids)) or {}, {}
    for i = 1, #ids do
      if which[i] and bodies[i] and not kept[ids[i]] then
        local names = of[i]
        if names then least[names] = least[names] or kept_for(names) end
        local ms = math.max(1, number(times[i], 3600000), names and least[names] or 0)
        call('PSETEX', results.key_of(ids[i]), ms, full and '' or bodies[i])
        if full then count_up(key.stats, 'results_lost', 1) end
        kept[ids[i]] = true
      end
    end
    if next(kept) and not has('results') then settings.use('results', true) end
    return kept
  end

  -- tell_clients: tell the clients that wait for these tasks that they have ended
  function results.tell_clients(ids)
    local waits, gone, answers, told = call('HMGET', key.awaited, unpack(ids)), {}, {}, 0
    for i = 1, #ids do
      if waits[i] then gone[#gone + 1], told = ids[i], told + #waits[i] end
      -- those who wait for what is too much for one call ask again by themselves
      for client in string.gmatch(told <= MOST_TOLD and waits[i] or '', '%S+') do
        answers[client] = answers[client] or {}
        table.insert(answers[client], ids[i])
      end
    end
    if #gone > 0 then call('HDEL', key.awaited, unpack(gone)) end
    for client, ended in pairs(answers) do
      local list = named('answers:' .. client)
      -- a client that is not told asks again by itself; so no key of a foreign type ends this script
      local size = try('RPUSH', list, unpack(ended))
      if type(size) == 'number' then
        if size > 10000 then call('LTRIM', list, -10000, -1) end
        call('PEXPIRE', list, 60000)
      end
    end
  end

  -- drop_results: the results of earlier runs of these tasks go, except those of the tasks in `fresh`
  function results.drop_results(ids, fresh)
    local old = {}
    for i = 1, #ids do
      if not (fresh and fresh[ids[i]]) then old[#old + 1] = results.key_of(ids[i]) end
    end
    if #old > 0 then call('DEL', unpack(old)) end
  end

  -- tell_ended: these tasks have ended, and will not run again by themselves. Results of earlier runs go, except those of the tasks
  -- in `fresh`; and the clients that wait are told. The batches of these tasks count them, `well` if they are done
  function results.tell_ended(ids, fresh, well)
    if #ids == 0 then return end
    if has('results') then
      results.drop_results(ids, fresh)
      results.tell_clients(ids)
    end
    if has('batches') then results.tell_ended(batches.end_in(ids, well)) end
  end
end
