-- restore: bring tasks of an export in as they were; skip those that a state knows, so that it may run again.
-- ARGS  1 call id, nonce   2 age of the call, ms
--       3.. count, id * count, states letters; sections: the states are t, s, d or f
-- SECTIONS  times=numbers (position, ms): due of s, acked of d   failures=pairs (position, how many)   crashes=pairs
--       (position, how many)   errors=pairs (position, the last one, its time before it)   payloads=pairs (position,
--       payload)   groups=pairs (position, host)   priorities=pairs (position, priority)   untils=numbers (position,
--       ms): until when a task of d blocks its id
-- Reply letters, one per id: A it is restored; t w p d f s the state it already is in
verb('restore', {}, function()
  local ids, at = tasks.read(3)
  local given, refused = sections(at + 1, ' times=numbers failures=pairs crashes=pairs errors=pairs payloads=pairs groups=pairs'
    .. ' priorities=pairs untils=numbers')
  if refused then return refused end
  local letters, times = args[at], given.times or {}
  if not letters or #letters ~= #ids or string.find(letters, '[^tsdf]') then
    return {err = 'STATES are to be ' .. #ids .. ' letters of t s d f'}
  end
  for i in string.gmatch(letters, '()s') do
    if not times[i] then return {err = 'TIME of scheduled task ' .. i .. ' is missing'} end
  end
  local where, call_id, codes = find.all(ids), args[1], {}
  if calls.replayed(call_id) then
    local all_new = calls.was(call_id .. '+')
    for i = 1, #ids do codes[i] = not all_new and where[i] or 'A' end
    return table.concat(codes)
  end
  -- records: of each record its key, its values by position, and what is to be written
  local records = {}
  for section, name in pairs({failures = key.attempts, crashes = key.crashes, errors = key.errors, payloads = key.payload, groups = key.groups}) do
    records[#records + 1] = {name, given[section] or {}, {}}
  end
  local of, untils, priorities = {t = {}, s = {}, d = {}, f = {}}, given.untils or {}, given.priorities or {}
  local dues, acked, ends, rows, seen, count, earliest = {}, {}, {}, {}, {}, 0, math.huge
  for i = 1, #ids do
    local id, letter, at_ms = ids[i], string.sub(letters, i, i), times[i]
    codes[i] = where[i] or seen[id] or 'A'
    if codes[i] == 'A' then
      seen[id], count = letter, count + 1
      table.insert(of[letter], id)
      local wanted = priority.read(priorities[i])
      if wanted and not (compact and letter == 'd') then rows[#rows + 1], rows[#rows + 2] = id, wanted end
      if letter == 'd' then
        acked[#acked + 1], ends[#ends + 1] = at_ms or false, untils[i] or false
      else
        for _, record in ipairs(records) do
          local value, fields = record[2][i], record[3]
          if value then fields[#fields + 1], fields[#fields + 2] = id, value end
        end
      end
      if letter == 's' then
        dues[#dues + 1], dues[#dues + 2], earliest = at_ms, id, math.min(earliest, tonumber(at_ms))
      end
    end
  end
  -- what is known of a task is written before the task: a call that is refused half-way leaves no task without it
  for _, record in ipairs(records) do some('HSET', record[1], record[3]) end
  some('HSET', key.priorities, rows) -- goes first: use() would make a full server allow it
  if #rows > 0 then settings.use('priority', true) end
  if #of.t > 0 then ready.enter(of.t) end
  if #of.d > 0 then done.keep(of.d, acked, ends) end
  some('SADD', key.failed, of.f)
  kinds.note(of.f)
  if #dues > 0 then
    call('ZADD', key.scheduled, unpack(dues))
    wake.rouse(earliest)
  end
  if count > 0 then tasks.count_new(count) end
  calls.note(call_id)
  if count == #ids then calls.note(call_id .. '+') end -- so that the call, if it is sent again, does not take its own tasks for known
  return table.concat(codes)
end)
