-- restore: bring tasks of an export in as they were; skip those that a state knows, so that it may run again.
-- KEYS  todos in_progress done failed scheduled done_at payload attempts crashes errors meta stats bell alarm calls
-- PARTS open wake calls log hostname polite add
-- SOUND stats calls alarm; payload done_at attempts crashes errors groups
-- ARGV  1 call id   2 age of the call, ms (0 when first sent)
--       3.. for each task: id; letter of its state, t s d f; time, ms: due of s, acked of d; failures; crashes;
--       last error with its time before it; payload; group; empty for none
-- Reply letters, one an id: A it is restored; t w p d f s the state it already is in
local call_id, ids, at = ARGV[1], {}, {}
for first = 3, #ARGV, 8 do
  ids[#ids + 1], at[#at + 1] = ARGV[first], first
end
local where, codes = find(ids), {}
sound()
if tonumber(ARGV[2]) > 0 and was_called(call_id) then
  for i = 1, #ids do
    codes[i] = where[i] or 'A'
  end
  return table.concat(codes)
end
local sets, dues, acked = {t = {}, d = {}, f = {}}, {}, {}
local records, earliest, count, seen = {[3] = {}, [4] = {}, [5] = {}, [6] = {}}, nil, 0, {}
for i = 1, #ids do
  local id, first = ids[i], at[i]
  local letter, time = ARGV[first + 1], ARGV[first + 2]
  codes[i] = where[i] or seen[id] or 'A'
  if codes[i] == 'A' then
    seen[id], count = letter, count + 1
    if letter ~= 'd' then regroup({id}, ARGV[first + 7]) end
    if letter == 's' then
      dues[#dues + 1], dues[#dues + 2] = time, id
      earliest = math.min(earliest or math.huge, tonumber(time))
    else
      table.insert(sets[letter], id)
    end
    if letter ~= 'd' then
      for what, fields in pairs(records) do
        local value = ARGV[first + what]
        if value ~= '' and (what > 4 or value ~= '0') then
          fields[#fields + 1], fields[#fields + 2] = id, value
        end
      end
    elseif keep_done ~= 'forever' and keep_done ~= 'no' then
      acked[#acked + 1], acked[#acked + 2] = time ~= '' and time or now, id
    end
  end
end
-- what is known of a task is written before the task: a script that is refused half-way leaves no task without it
if #records[3] > 0 then redis.call('HSET', attempts, unpack(records[3])) end
if #records[4] > 0 then redis.call('HSET', crashes, unpack(records[4])) end
if #records[5] > 0 then redis.call('HSET', errors, unpack(records[5])) end
if #records[6] > 0 then redis.call('HSET', payload, unpack(records[6])) end
if #sets.t > 0 then ready(sets.t) end
if #sets.d > 0 then redis.call('SADD', done, unpack(sets.d)) end
if #sets.f > 0 then redis.call('SADD', failed, unpack(sets.f)) end
if earliest then
  redis.call('ZADD', scheduled, unpack(dues))
  rouse(earliest)
end
if #acked > 0 then redis.call('ZADD', done_at, unpack(acked)) end
if count > 0 then put_new(count) end
note_call(call_id)
return table.concat(codes)
