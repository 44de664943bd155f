-- results: what the last run of a task has given, kept for a time, and the clients that wait for tasks to end. A queue uses this as
-- soon as a result is written or a client waits
-- result:ID       STRING with a TTL: the result, as its worker has written it; empty if the server had no memory for it. That of a task
--                 of a batch is kept as long as the batch is kept after its end, at least
-- awaited         of each task that is waited for: the names of the clients that wait, with blanks between them
-- answers:CLIENT  LIST with a TTL: tasks that have ended and that this client waited for; 10000 at most
-- PARTS switch batch
local tell_ended
local MOST_NAMES, MOST_TOLD = 8490, 170000 -- bytes of names: of one task, five hundred clients; in one call, ten thousand

-- result_of: the name of the key with a task's result. No other place makes such a name
local function result_of(id)
  return key('result:' .. id)
end

-- kept_for: for how many ms the result of a task of these batches is kept, at least, so that their callbacks can read it: as long as they
-- are kept after their end; a day before they are sealed
local function kept_for(names)
  local ms = 0
  for name in string.gmatch(names, '%S+') do
    local text = redis.pcall('HGET', key('batches'), name)
    local one = type(text) == 'string' and read_batch(text)
    ms = math.max(ms, one and one.state == 's' and one.keep or 86400000)
  end
  return ms
end

-- keep_results: write the results of runs that are about to end: bodies[i] is that of ids[i], times[i] for how many ms it is kept;
-- which[i] says whether the run ends. It is called before the script has written anything: then a full server refuses a result, and
-- such a task ends with an empty one. Gives the tasks that have a new result
local function keep_results(ids, which, bodies, times)
  local kept, full = {}, false
  local of, least = has('batches') and redis.pcall('HMGET', key('batch_of'), unpack(ids)) or {}, {}
  for i = 1, #ids do
    if which[i] and bodies[i] and not kept[ids[i]] then
      local names = of[i]
      if names then least[names] = least[names] or kept_for(names) end
      local name, ms = result_of(ids[i]), math.max(1, number(times[i], 3600000), names and least[names] or 0)
      local reply = full or redis.pcall('PSETEX', name, ms, bodies[i])
      if not full and type(reply) == 'table' and reply.err then
        full = string.find(tostring(reply.err), 'OOM', 1, true) and true
        -- any other error, for lack of rights, comes again here
        if not full then redis.call('PSETEX', name, ms, bodies[i]) end
        even_when_full()
      end
      if full then
        redis.call('PSETEX', name, ms, '')
        count_up(stats, 'results_lost', 1)
      end
      kept[ids[i]] = true
    end
  end
  if next(kept) and not has('results') then use('results', true) end
  return kept
end

-- tell_clients: tell the clients that wait for these tasks that they have ended
local function tell_clients(ids)
  local waits, gone, answers, told = redis.call('HMGET', key('awaited'), unpack(ids)), {}, {}, 0
  for i = 1, #ids do
    if waits[i] then gone[#gone + 1], told = ids[i], told + #waits[i] end
    -- those who wait for what is too much for one call ask again by themselves
    for client in string.gmatch(told <= MOST_TOLD and waits[i] or '', '%S+') do
      answers[client] = answers[client] or {}
      table.insert(answers[client], ids[i])
    end
  end
  if #gone > 0 then redis.call('HDEL', key('awaited'), unpack(gone)) end
  for client, ended in pairs(answers) do
    local list = key('answers:' .. client)
    -- a client that is not told asks again by itself; so no key of a foreign type ends this script
    local size = redis.pcall('RPUSH', list, unpack(ended))
    if type(size) == 'number' then
      if size > 10000 then redis.call('LTRIM', list, -10000, -1) end
      redis.call('PEXPIRE', list, 60000)
    end
  end
end

-- drop_results: the results of earlier runs of these tasks go, except those of the tasks in `fresh`
local function drop_results(ids, fresh)
  local old = {}
  for i = 1, #ids do
    if not (fresh and fresh[ids[i]]) then old[#old + 1] = result_of(ids[i]) end
  end
  if #old > 0 then redis.call('DEL', unpack(old)) end
end

if uses then
  -- tell_ended: these tasks have ended, and will not run again by themselves. Results of earlier runs go, except those of the tasks
  -- in `fresh`; and the clients that wait are told. The batches of these tasks count them, `well` if they are done
  function tell_ended(ids, fresh, well)
    if #ids == 0 then return end
    if has('results') then
      rarely('drop_results')(ids, fresh)
      rarely('tell_clients')(ids)
    end
    if has('batches') then tell_ended(rarely('end_in_batches')(ids, well)) end
  end
end
