-- priority: on a polite queue, the task with the highest priority is the next of its host. A queue uses this as soon as
-- a put has given a priority; tasks without one have 0
-- priorities  the priority of each task that has one, a whole number from -1000 to 1000; kept also while the task is
--             done
-- The score of a task in the lane of its host is the time at which the task became ready, in ms, minus 2^41 for each
-- point of priority. So the task with the highest priority goes first, and among equals the task that has waited
-- longest
do
  local POINT = 2199023255552 -- 2^41

  -- read: the priority that a word says; nil for a word that says none
  function priority.read(word)
    local found = word and string.find(word, '^%-?%d%d?%d?%d?$') and tonumber(word)
    if found and found >= -1000 and found <= 1000 then return found end
  end

  -- ahead_of: by how many ms each of these tasks goes before its time
  function priority.ahead_of(ids)
    local ahead = has('priority') and #ids > 0 and call('HMGET', key.priorities, unpack(ids)) or {}
    for i = 1, #ids do ahead[i] = number(ahead[i], 0) * POINT end
    return ahead
  end

  -- forget: these tasks have no priority any more
  function priority.forget(ids)
    if has('priority') then some('HDEL', key.priorities, ids) end
  end

  -- of: the priorities that a put gives, false for none; nil if it gives none at all; nil and an error for one that
  -- cannot be used
  function priority.of(ids, given)
    if #ids == 0 or not (given.priority or given.priorities) then return nil end
    if not polite then
      return nil, {err = 'PRIORITY this queue is not polite, and ready tasks of a queue that is not polite have no order: make it '
        .. 'polite (politeness=Politeness(delay=0, per_host=1000) keeps nobody waiting), or use one queue for each priority'}
    end
    if given.improve and has('compact') then
      return nil, {err = 'COMPACT improve compares with the priorities of done tasks, and this queue has keep_done="compact", which '
        .. 'keeps no priorities of done tasks: put without improve, or use a queue with another keep_done'}
    end
    local priorities, own = {}, given.priorities or {}
    local names, own_hosts = ready.hosts_of(ids, given.group), given.groups or {}
    for i = 1, #ids do
      local word = own[i] or given.priority
      priorities[i] = priority.read(word) or false
      if word and not priorities[i] then
        return nil, {err = 'PRIORITY a priority is a whole number from -1000 to 1000, not ' .. shown(word, 20)}
      elseif word and not (own_hosts[i] or names[i]) then
        return nil, {err = 'PRIORITY task ' .. shown(ids[i]) .. ' belongs to no host, so it does not wait for a turn, and a priority '
          .. 'would mean nothing: put it with group=, or without a priority'}
      end
    end
    return priorities
  end

  -- chosen_of: for each id the place with the highest priority; without one, a place gives new tasks 0, others nothing
  function priority.chosen_of(ids, priorities, where)
    local chosen = {}
    for i = 1, #ids do
      local other, wanted = chosen[ids[i]], priorities[i]
      if not other or wanted and wanted > (priorities[other] or where[i] and -math.huge or 0) then chosen[ids[i]] = i end
    end
    return chosen
  end

  -- raised_by: what a put with priorities does to each task that the queue has already. changes[i] is 'up': ids[i]
  -- waits for a claim, and gets the higher priority; 'marked': ids[i] is in progress, and runs once more; 'back':
  -- ids[i] is done, and comes back; nil: nothing. 'marked' and 'back' only for tasks with improve: `improve` is nil for
  -- none, {} for all, or a list of places; of an id that is named several times, one place is enough. Gives `changes`,
  -- and the priorities before
  function priority.raised_by(ids, where, priorities, chosen, improve)
    local changes, before, improves = {}, call('HMGET', key.priorities, unpack(ids)), {}
    for _, at in ipairs(improve or {}) do improves[ids[tonumber(at)]] = true end
    for i = 1, #ids do
      local state, wanted = where[i], priorities[i]
      if state and wanted and chosen[ids[i]] == i and wanted > number(before[i], 0) then
        local may_run = improve and #improve == 0 or improves[ids[i]]
        if state == 't' or state == 'w' or state == 's' then
          changes[i] = 'up'
        elseif may_run and state == 'p' then
          local mark = call('HGET', key.rerun, ids[i])
          if not mark or wanted > number(string.match(mark, '^%S+'), 0) then changes[i] = 'marked' end
        elseif may_run and state == 'd' then
          changes[i] = 'back'
        end
      end
    end
    return changes, before
  end

  -- raise: write the new priorities, payloads and marks that raised_by() has found. Done tasks come back in add()
  function priority.raise(ids, where, priorities, changes, before, bodies)
    local names
    for i = 1, #ids do
      if changes[i] == 'up' or changes[i] == 'marked' then settings.use('priority', true) end
      if changes[i] == 'marked' then
        rerun.mark(ids[i], priorities[i], bodies[i])
      elseif changes[i] == 'up' then
        if bodies[i] then call('HSET', key.payload, ids[i], bodies[i]) end
        call('HSET', key.priorities, ids[i], priorities[i])
        names = names or where[i] == 'w' and ready.hosts_of(ids)
        local lane = where[i] == 'w' and names[i] and named('host:' .. names[i])
        if lane then call('ZADD', lane, 'XX', 'INCR', whole((number(before[i], 0) - priorities[i]) * POINT), ids[i]) end
      end
    end
  end

  -- store: note the priorities of tasks that are added; one that comes back without a priority keeps its own
  function priority.store(ids, fresh, where, priorities)
    local rows, none = {}, {}
    for n = 1, #fresh do
      local i = fresh[n]
      local wanted = priorities and priorities[i]
      if wanted and wanted ~= 0 then
        rows[#rows + 1], rows[#rows + 2] = ids[i], wanted
      elseif wanted or not where[i] then
        none[#none + 1] = ids[i]
      end
    end
    if #rows > 0 then settings.use('priority', true) end
    some('HSET', key.priorities, rows)
    priority.forget(none)
  end
end
