-- find: where tasks are now: t todos, p in progress, d done, f failed, w waiting, s scheduled
do
  -- one: the letter of the state that holds an id, or nil
  function find.one(id)
    return call('SISMEMBER', key.todos, id) == 1 and 't' or waiting and call('SISMEMBER', waiting, id) == 1 and 'w' or find.elsewhere(id)
  end

  -- elsewhere: the same of a task that is neither in todos nor in waiting
  function find.elsewhere(id)
    return call('SISMEMBER', key.in_progress, id) == 1 and 'p' or done.has(id) and 'd' or call('EXISTS', key.failed, key.scheduled) > 0
      and (call('SISMEMBER', key.failed, id) == 1 and 'f' or call('ZSCORE', key.scheduled, id) and 's') or nil
  end

  -- all: the same of many; and how many are anywhere
  function find.all(ids)
    if #ids == 1 then
      local state = find.one(ids[1])
      return {state}, state and 1 or 0
    end
    local where, known = {}, 0
    -- to ask for a few is as cheap as to ask whether the set is there at all
    local many = #ids > 8
    local function mark(letter, set)
      if many and set and call('EXISTS', set) == 0 then return end
      local hits = set and call('SMISMEMBER', set, unpack(ids)) or done.among(ids)
      if not hits[1] then return end
      for i = 1, #ids do
        if hits[i] == 1 then where[i], known = letter, known + 1 end
      end
    end
    mark('t', key.todos)
    mark('p', key.in_progress)
    mark('d')
    mark('f', key.failed)
    if waiting then mark('w', waiting) end
    if not many or call('EXISTS', key.scheduled) == 1 then
      local due = call('ZMSCORE', key.scheduled, unpack(ids))
      for i = 1, #ids do
        if due[i] then where[i], known = 's', known + 1 end
      end
    end
    return where, known
  end

  -- letters: the same of a list of tasks, u for one that is in no state
  function find.letters(ids)
    local where = find.all(ids)
    for i = 1, #ids do where[i] = where[i] or 'u' end
    return where
  end

  -- everywhere: the letters of all the states that hold each id, its deadline and its owner
  function find.everywhere(ids)
    local states = {}
    for i = 1, #ids do states[i] = '' end
    local function mark(hits, letter)
      for i = 1, #ids do
        if hits[i] == 1 then states[i] = states[i] .. letter end
      end
    end
    mark(call('SMISMEMBER', key.in_progress, unpack(ids)), 'p')
    mark(call('SMISMEMBER', key.todos, unpack(ids)), 't')
    mark(call('SMISMEMBER', key.waiting, unpack(ids)), 'w')
    mark(done.among(ids), 'd')
    mark(call('SMISMEMBER', key.failed, unpack(ids)), 'f')
    local due = call('ZMSCORE', key.scheduled, unpack(ids))
    for i = 1, #ids do
      if due[i] then states[i] = states[i] .. 's' end
    end
    return states, call('ZMSCORE', key.leases, unpack(ids)), call('HMGET', key.owners, unpack(ids))
  end

  -- about: all that is known of one task
  function find.about(id)
    local digest = call('HGET', key.traces, id)
    return {
      now, find.one(id) or 'u', call('ZSCORE', key.scheduled, id), call('ZSCORE', key.leases, id), call('HGET', key.owners, id),
      call('HGET', key.attempts, id), call('HGET', key.crashes, id), call('HGET', key.errors, id),
      call('HGET', key.payload, id), ready.hosts_of({id})[1] or false,
      digest and call('HGET', key.trace_texts, digest), call('HGET', key.releases, id),
      has('priority') and call('HGET', key.priorities, id), has('rerun') and call('HEXISTS', key.rerun, id) or 0,
      has('results') and call('EXISTS', results.key_of(id)) or 0,
      has('cancel') and call('HGET', key.cancels, id), has('progress') and call('HGET', key.progress, id),
      has('records') and call('GET', results.record_of(id)),
    }
  end
end
