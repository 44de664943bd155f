-- restore: bring tasks of an export in as they were; skip those that a state knows, so that it may run again.
-- ARGS  1 call id, nonce   2 age of the call, ms
--       3.. count, id * count, states letters; sections: the states are t, s, d or f
-- SECTIONS  times=numbers (position, ms): due of s, acked of d   failures=pairs (position, how many)   crashes=pairs (position, how many)
--       errors=pairs (position, the last one, its time before it)   payloads=pairs (position, payload)   groups=pairs (position, host)   priorities=pairs (position, priority)
--       untils=numbers (position, ms): until when a task of d blocks its id
-- Reply letters, one per id: A it is restored; t w p d f s the state it already is in
verb('restore', {}, function()
  local call_id = args[1]
  local ids, at = tasks.read(3)
  local given, refused = sections(at + 1, ' times=numbers failures=pairs crashes=pairs errors=pairs payloads=pairs groups=pairs priorities=pairs untils=numbers')
  if refused then return refused end
  local letters, times, own_hosts = args[at], given.times or {}, given.groups or {}
  if not letters or #letters ~= #ids or string.find(letters, '[^tsdf]') then
    return {err = 'STATES are to be ' .. #ids .. ' letters of t s d f'}
  end
  for i in string.gmatch(letters, '()s') do
    if not times[i] then return {err = 'TIME of scheduled task ' .. i .. ' is missing'} end
  end
  local where, codes = find.all(ids), {}
  if tonumber(args[2]) > 0 and calls.was(call_id) then
    local whole = calls.was(call_id .. '+')
    if has('durable') then calls.again(call_id) end
    for i = 1, #ids do
      codes[i] = not whole and where[i] or 'A'
    end
    return table.concat(codes)
  end
  local sets, dues, acked, ends, untils = {t = {}, d = {}, f = {}}, {}, {}, {}, given.untils or {}
  local earliest, count, seen, rows, priorities = nil, 0, {}, {}, given.priorities or {}
  -- of each record: its key, its values by position, and what is to be written
  local records = {
    {key.attempts, given.failures or {}, {}}, {key.crashes, given.crashes or {}, {}},
    {key.errors, given.errors or {}, {}}, {key.payload, given.payloads or {}, {}},
  }
  for i = 1, #ids do
    local id, letter, at_ms = ids[i], string.sub(letters, i, i), times[i]
    codes[i] = where[i] or seen[id] or 'A'
    if codes[i] == 'A' then
      seen[id], count = letter, count + 1
      local wanted = priority.read(priorities[i])
      if wanted and not (compact and letter == 'd') then rows[#rows + 1], rows[#rows + 2] = id, wanted end
      if letter ~= 'd' then groups.keep({id}, own_hosts[i]) end
      if letter == 's' then
        dues[#dues + 1], dues[#dues + 2] = at_ms, id
        earliest = math.min(earliest or math.huge, tonumber(at_ms))
      else
        table.insert(sets[letter], id)
      end
      if letter ~= 'd' then
        for _, record in ipairs(records) do
          local value, fields = record[2][i], record[3]
          if value then fields[#fields + 1], fields[#fields + 2] = id, value end
        end
      else
        acked[#acked + 1], ends[#ends + 1] = at_ms or false, untils[i] or false
      end
    end
  end
  -- what is known of a task is written before the task: a script that is refused half-way leaves no task without it
  for _, record in ipairs(records) do
    if #record[3] > 0 then call('HSET', record[1], unpack(record[3])) end
  end
  if #rows > 0 then
    call('HSET', key.priorities, unpack(rows)) -- goes first: use() would make a full server allow it
    if not has('priority') then settings.use('priority', true) end
  end
  if #sets.t > 0 then ready.enter(sets.t) end
  if #sets.d > 0 then done.keep(sets.d, acked, ends) end
  if #sets.f > 0 then
    call('SADD', key.failed, unpack(sets.f))
    kinds.note(sets.f)
  end
  if earliest then
    call('ZADD', key.scheduled, unpack(dues))
    wake.rouse(earliest)
  end
  if count > 0 then tasks.count_new(count) end
  calls.note(call_id)
  if count == #ids then calls.note(call_id .. '+') end -- so that the call, if it is sent again, does not take its own tasks for known
  return table.concat(codes)
end)
