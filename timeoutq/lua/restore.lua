-- restore: bring tasks of an export in as they were; skip those that a state knows, so that it may run again.
-- KEYS  todos in_progress done failed scheduled done_at payload attempts crashes errors lock meta stats bell alarm calls
-- PARTS open sections calls add ages
-- SOUND stats calls alarm; payload done_at attempts crashes errors groups kinds kind_of
-- ARGV  1 call id, nonce   2 age of the call, ms
--       3.. count, id * count, states letters; sections: the states are t, s, d or f
-- SECTIONS  times=numbers (position, ms): due of s, acked of d   failures=pairs (position, how many)   crashes=pairs (position, how many)
--       errors=pairs (position, the last one, its time before it)   payloads=pairs (position, payload)   groups=pairs (position, host)   priorities=pairs (position, priority)
--       untils=numbers (position, ms): until when a task of d blocks its id
-- Reply letters, one per id: A it is restored; t w p d f s the state it already is in
local call_id = ARGV[1]
local ids, at = read_ids(3)
local given, refused = sections(at + 1, ' times=numbers failures=pairs crashes=pairs errors=pairs payloads=pairs groups=pairs priorities=pairs untils=numbers')
if refused then return refused end
local letters, times, groups = ARGV[at], given.times or {}, given.groups or {}
if not letters or #letters ~= #ids or string.find(letters, '[^tsdf]') then
  return {err = 'STATES are to be ' .. #ids .. ' letters of t s d f'}
end
for i in string.gmatch(letters, '()s') do
  if not times[i] then return {err = 'TIME of scheduled task ' .. i .. ' is missing'} end
end
local where, codes = find_all(ids), {}
sound()
if done_sound then done_sound(ids) end
if tonumber(ARGV[2]) > 0 and was_called(call_id) then
  local whole = was_called(call_id .. '+')
  if has('durable') then called_again(call_id) end
  for i = 1, #ids do
    codes[i] = not whole and where[i] or 'A'
  end
  return table.concat(codes)
end
local sets, dues, acked, ends, untils = {t = {}, d = {}, f = {}}, {}, {}, {}, given.untils or {}
if given.untils then redis.call('ZCARD', key('done_until')) end
local earliest, count, seen, rows, priorities = nil, 0, {}, {}, given.priorities or {}
if given.priorities then redis.call('HLEN', key('priorities')) end
-- of each record: its key, its values by position, and what is to be written
local records = {
  {attempts, given.failures or {}, {}}, {crashes, given.crashes or {}, {}},
  {errors, given.errors or {}, {}}, {payload, given.payloads or {}, {}},
}
for i = 1, #ids do
  local id, letter, time = ids[i], string.sub(letters, i, i), times[i]
  codes[i] = where[i] or seen[id] or 'A'
  if codes[i] == 'A' then
    seen[id], count = letter, count + 1
    local priority = read_priority(priorities[i])
    if priority and not (compact and letter == 'd') then rows[#rows + 1], rows[#rows + 2] = id, priority end
    if letter ~= 'd' then regroup({id}, groups[i]) end
    if letter == 's' then
      dues[#dues + 1], dues[#dues + 2] = time, id
      earliest = math.min(earliest or math.huge, tonumber(time))
    else
      table.insert(sets[letter], id)
    end
    if letter ~= 'd' then
      for _, record in ipairs(records) do
        local value, fields = record[2][i], record[3]
        if value then fields[#fields + 1], fields[#fields + 2] = id, value end
      end
    else
      acked[#acked + 1], ends[#ends + 1] = time or false, untils[i] or false
    end
  end
end
-- what is known of a task is written before the task: a script that is refused half-way leaves no task without it
for _, record in ipairs(records) do
  if #record[3] > 0 then redis.call('HSET', record[1], unpack(record[3])) end
end
if #rows > 0 then
  redis.call('HSET', key('priorities'), unpack(rows)) -- goes first: use() would make a full server allow it
  if not has('priority') then use('priority', true) end
end
if #sets.t > 0 then ready(sets.t) end
if #sets.d > 0 then keep(sets.d, acked, ends) end
if #sets.f > 0 then
  redis.call('SADD', failed, unpack(sets.f))
  rarely('note_kinds')(sets.f)
end
if earliest then
  redis.call('ZADD', scheduled, unpack(dues))
  rouse(earliest)
end
if count > 0 then put_new(count) end
note_call(call_id)
if count == #ids then note_call(call_id .. '+') end -- so that the call, if it is sent again, does not take its own tasks for known
return table.concat(codes)
