-- tasks: how tasks come into the queue, and how some are picked to leave it
do
  -- revive: done and failed tasks become ready, each task in one step
  local function revive(ids, from, group)
    local names, count = ready.hosts_of(ids, group), 0
    for i = 1, #ids do
      local into = ready.entry(names[i])
      if from[i] == 'd' then done.revive(ids[i], into) else call('SMOVE', key.failed, into, ids[i]) end
      if into == key.todos then count = count + 1 end
    end
    if count > 0 then plain.note_first(count) end
  end

  -- count_new: count what was put
  function tasks.count_new(count)
    count_up(key.stats, 'put', count)
    settings.exists()
  end

  -- fresh_ones: the usual case, in which no state knows any of the ids, costs no table
  local function fresh_ones(ids, group)
    local count = ready.enter(ids, group)
    tasks.count_new(count)
    if count == #ids then return string.rep('A', count) end
    local codes, seen, where = {}, {}, find.all(ids)
    for i = 1, #ids do
      codes[i] = seen[ids[i]] and where[i] or 'A'
      seen[ids[i]] = true
    end
    return table.concat(codes)
  end

  -- schedule: these tasks, which are in scheduled or in no state, are due at a time
  local function schedule(ids, due)
    if #ids == 0 then return end
    call('ZADD', key.scheduled, unpack(alike(ids, due)))
    wake.rouse(due)
  end

  -- add_some: add() where there is more to write, or `known` of the ids are in a state: where[i] is that of ids[i]
  local function add_some(ids, given, again, due, priorities, where, known)
    local lapsed = known > 0 and lasting.lapsed_of(ids, where, given.unique) or {}
    if known > 0 and has('batches') then batches.tell_callbacks(ids, where) end
    local group = given.group or ''
    local payloads, own_hosts = given.payloads or {}, given.groups or {}
    local fresh, codes, seen, twice = {}, {}, {}, false
    local first, changes, before = priorities and priority.chosen_of(ids, priorities, where) or seen, {}, nil
    if priorities and known > 0 then changes, before = priority.raised_by(ids, where, priorities, first, given.improve) end
    local anew = {}
    if given.rerun then first, anew = rerun.newest_of(ids, where, given.rerun, first, changes) end
    for i = 1, #ids do
      local id, state = ids[i], where[i]
      local is_first = (first[id] or i) == i
      local comes = not state or again and (state == 'd' or state == 'f') or lapsed[i] or (anew[i] or changes[i]) == 'back'
      if is_first and comes then
        seen[id], fresh[#fresh + 1], codes[i] = i, i, 'A'
      elseif state == 'b' then
        codes[i] = 's' -- the callback of a batch waits for the batch, whatever a put says of it
      elseif anew[i] or changes[i] then
        codes[i] = changes[i] and 'r' or anew[i] == 'marked' and 'n' or state
      else
        codes[i] = state and not seen[id] and state or (due and 's' or 't')
        twice = twice or not is_first
      end
    end
    local names, back, from, bodies, own = {}, {}, {}, {}, {}
    for _, i in ipairs(fresh) do
      names[#names + 1] = ids[i]
      if where[i] then back[#back + 1], from[#back + 1] = ids[i], where[i] end
      if payloads[i] then bodies[#bodies + 1], bodies[#bodies + 2] = ids[i], payloads[i] end
      if own_hosts[i] then own[#own + 1], own[#own + 2] = ids[i], own_hosts[i] end
    end
    -- a task's payload and records are written before the task: so a call that is refused half-way leaves no task
    -- without them
    if #back > 0 then
      done.undate(back)
      kinds.leave(back)
      failures.clear(back)
    end
    some('HSET', key.payload, bodies)
    if next(changes) then priority.raise(ids, where, priorities, changes, before, payloads) end
    if next(anew) then rerun.put(ids, where, anew, payloads, priorities) end
    if polite and (priorities or has('priority')) then priority.store(ids, fresh, where, priorities) end
    if #own > 0 then
      -- the group of a task goes before the group of all
      groups.keep(names, group)
      call('HSET', key.groups, unpack(own))
      group = ''
    end
    if due then
      local later = {}
      for i = 1, #ids do later[i] = codes[i] == 'A' or where[i] == 's' end
      groups.keep(names, group)
      schedule(chosen(ids, later), due)
      if #back > 0 then done.undo(back) end
      some('SREM', key.failed, back)
    elseif #names > 0 then
      if #back > 0 then revive(back, from, group) end
      ready.enter(names, group)
    end
    if #names > 0 then tasks.count_new(#names) end
    if waiting and twice then
      where = find.all(ids)
      for i = 1, #ids do codes[i] = (codes[i] == 'A' or codes[i] == 'r' or codes[i] == 'n') and codes[i] or where[i] end
    end
    return table.concat(codes)
  end

  -- add: put the ids that no state knows into todos, or into scheduled when `due` is given; `again` brings done and
  -- failed ones back. `given` are the sections of the call: of them, `group`, `payloads`, `groups`, `improve`, `unique`
  -- and `rerun` are read; `priorities` is what priority.of() gives. An id that is named twice has the payload and the
  -- group of the first time, or of the time with the highest priority; with rerun, of the last time with rerun. Gives a
  -- letter per id
  function tasks.add(ids, given, again, due, priorities)
    local group = given.group or ''
    local bare = not (due or given.payloads or given.groups or priorities or has('priority'))
    local where, known
    if bare and #ids == 1 and ready == plain and group == '' then
      where, known = {find.elsewhere(ids[1])}, 1
      if not where[1] then
        if ready.enter(ids, group, true) == 0 then return 't' end
        tasks.count_new(1)
        return 'A'
      end
    else
      where, known = find.all(ids)
    end
    if known == 0 and bare then return fresh_ones(ids, group) end
    return add_some(ids, given, again, due, priorities, where, known)
  end

  -- cannot: what is wrong with the sections of a call that brings these tasks, as an error; else nil and the priorities
  function tasks.cannot(ids, given)
    if given == none then return nil end
    local priorities, unfit = priority.of(ids, given)
    return unfit or lasting.cannot(given.unique), priorities
  end

  -- put: add the tasks of `put` and `schedule`, once for each call, and to the batch that the call names
  function tasks.put(ids, given, due)
    local unfit, priorities = tasks.cannot(ids, given)
    local call_id, batched = args[1], nil
    if given.batch and not unfit then batched, unfit = batches.may_join(given.batch, ids) end
    if due == false then unfit = unfit or {err = 'TIME when the tasks are due is no number of milliseconds'} end
    if unfit then return unfit end
    local before = calls.answered_before(call_id, ids)
    if before then return before end
    if given.visited then ready.rest({given.visited}, {true}) end
    local codes = tasks.add(ids, given, given.again, due, priorities)
    if batched then batches.join(given.batch, ids, batched) end
    calls.note(call_id)
    return codes
  end

  -- retry: failed tasks are ready again, with a clean record; gives them
  function tasks.retry(ids)
    local names, moved, moved_names = #ids > 0 and ready.hosts_of(ids), {}, {}
    for i = 1, #ids do
      if call('SMOVE', key.failed, ready.entry(names[i]), ids[i]) == 1 then
        moved[#moved + 1], moved_names[#moved + 1] = ids[i], names[i]
      end
    end
    if #moved == 0 then return moved end
    kinds.leave(moved)
    failures.clear(moved)
    count_up(key.stats, 'retried', #moved)
    ready.arrive(moved, moved_names)
    ready.turn()
    return moved
  end

  -- forget: tasks that have been taken out of their states leave nothing behind but their groups
  function tasks.forget(ids)
    call('HDEL', key.payload, unpack(ids))
    kinds.leave(ids)
    failures.clear(ids)
    priority.forget(ids)
    results.unrecord(ids)
    results.tell_ended(ids)
  end

  -- read: words at.. = count, id * count; gives the ids, and where they end
  function tasks.read(at)
    local count = tonumber(args[at])
    return {unpack(args, at + 1, at + count)}, at + count + 1
  end

  -- pick: n of the `count` ready tasks, any. A scan from a random place takes a tenth of the time of SRANDMEMBER
  function tasks.pick(n, count)
    if n == 1 then
      local id = call('SRANDMEMBER', key.todos)
      return id and {id} or {}
    end
    if count <= n then return call('SRANDMEMBER', key.todos, n) end
    local found, seen = {}, {}
    -- the lowest bits of a cursor say where it stands, and the next place is where its highest bit counts up
    local cursor = whole((time[2] * 40503 + time[1] * 2654435) % 4294967296 * 40503 % 4294967296)
    for _ = 1, 4 do
      local page = call('SSCAN', key.todos, cursor, 'COUNT', n - #found)
      local ids = page[2]
      if #found == 0 and #ids >= n then return {unpack(ids, 1, n)} end
      for i = 1, #ids do
        if #found < n and not seen[ids[i]] then
          seen[ids[i]], found[#found + 1] = true, ids[i]
        end
      end
      if #found == n then return found end
      cursor = page[1] -- it begins anew at 0
    end
    return call('SRANDMEMBER', key.todos, n)
  end

  -- fit: as many tasks as one reply brings, with about 4 MiB of payloads; and their payloads, nil if no task has any
  function tasks.fit(ids)
    if call('EXISTS', key.payload) == 0 then return ids end
    local bodies, bytes = {}, 0
    while #bodies < #ids and bytes < 4194304 do
      local more = bytes < 1024 * #bodies and 100 or 8
      local page = call('HMGET', key.payload, unpack(ids, #bodies + 1, math.min(#bodies + more, #ids)))
      for i = 1, #page do
        if bytes < 4194304 then bodies[#bodies + 1], bytes = page[i], bytes + (page[i] and #page[i] or 0) end
      end
    end
    return {unpack(ids, 1, #bodies)}, bodies
  end
end
