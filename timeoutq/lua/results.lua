-- results: what the last run of a task has given, kept for a time, and the clients that wait for tasks to end. A queue
-- uses this as soon as a result is written or a client waits
-- result:ID       STRING with a TTL: the result, as its worker has written it; empty if the server had no memory for
--                 it. That of a task of a batch is kept as long as the batch is kept after its end, at least
-- awaited         of each task that is waited for: the names of the clients that wait, with blanks between them
-- answers:CLIENT  LIST with a TTL: tasks that have ended and that this client waited for; 10000 at most
do
  local MOST_TOLD
  results.MOST_NAMES, MOST_TOLD = 8490, 170000 -- bytes of names: of one task, five hundred clients; in one call, ten thousand

  function results.key_of(id)
    return named('result:' .. id)
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

  -- keep: write the results of runs that are about to end (which[i]); gives the tasks that have a new one
  function results.keep(ids, which, given)
    local kept, times, least = {}, given.times or {}, {}
    local of = has('batches') and call('HMGET', key.batch_of, unpack(ids)) or {}
    for i = 1, #ids do
      local body, names = given.results[i], of[i]
      if which[i] and body and not kept[ids[i]] then
        if names then least[names] = least[names] or kept_for(names) end
        local ms = math.max(1, number(times[i], 3600000), names and least[names] or 0)
        call('PSETEX', results.key_of(ids[i]), ms, given.full and '' or body)
        if given.full then count_up(key.stats, 'results_lost', 1) end
        kept[ids[i]] = true
      end
    end
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
  -- told; and the batches of these tasks count them, `well` if they are done
  function results.tell_ended(ids, fresh, well)
    if #ids == 0 then return end
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
