-- find: where each id is now, as a letter, or false
local function find(ids)
  local where = {}
  local function mark(key, letter)
    local hits = redis.call('SMISMEMBER', key, unpack(ids))
    for i = 1, #ids do
      if hits[i] == 1 then where[i] = letter end
    end
  end
  mark(todos, 't')
  mark(in_progress, 'p')
  mark(done, 'd')
  mark(failed, 'f')
  if redis.call('EXISTS', scheduled) == 1 then
    local due = redis.call('ZMSCORE', scheduled, unpack(ids))
    for i = 1, #ids do
      if due[i] then where[i] = 's' end
    end
  end
  return where
end

-- add: put the ids that no state knows into todos, or into scheduled when `due` is given; `again` brings done and
-- failed ones back. `payloads` maps positions to payloads. Answers a letter an id, and how many were added.
local function add(ids, payloads, again, due)
  local where, fresh, codes, count, seen = find(ids), {}, {}, 0, {}
  for i = 1, #ids do
    local id, state = ids[i], where[i]
    if not state and not seen[id] then
      seen[id], fresh[#fresh + 1], codes[i] = true, i, 'A'
    elseif again and not seen[id] and (state == 'd' or state == 'f') then
      seen[id], fresh[#fresh + 1], codes[i] = true, i, 'A'
    else
      codes[i] = state and not seen[id] and state or (due and 's' or 't')
    end
  end
  local names, dues, back, bodies, later = {}, {}, {}, {}, {}
  for n = 1, #fresh do
    local i = fresh[n]
    names[n] = ids[i]
    if where[i] then back[#back + 1] = ids[i] end
    if payloads[i] then
      bodies[#bodies + 1] = ids[i]
      bodies[#bodies + 1] = payloads[i]
    end
  end
  if #back > 0 then
    redis.call('SREM', done, unpack(back))
    redis.call('SREM', failed, unpack(back))
    redis.call('ZREM', done_at, unpack(back))
    redis.call('HDEL', attempts, unpack(back))
    redis.call('HDEL', crashes, unpack(back))
    redis.call('HDEL', errors, unpack(back))
  end
  if due then
    for i = 1, #ids do
      if codes[i] == 'A' or codes[i] == 's' then
        dues[#dues + 1] = due
        dues[#dues + 1] = ids[i]
      end
    end
    if #dues > 0 then
      redis.call('ZADD', scheduled, unpack(dues))
      rouse(due)
    end
  elseif #names > 0 then
    count = redis.call('SADD', todos, unpack(names))
    if redis.call('SCARD', todos) == count then
      redis.call('HSET', stats, 'todos_since', now)
    end
    ring()
  end
  if #bodies > 0 then
    redis.call('HSET', payload, unpack(bodies))
  end
  if #names > 0 then
    redis.call('HINCRBY', stats, 'put', #names)
    if not settings[1] then redis.call('HSET', meta, 'schema', '1') end
  end
  return table.concat(codes)
end

-- read_tasks: ARGV[at..] = count, id * count, count of payloads, (position, payload) *
local function read_tasks(at)
  local ids, payloads, count = {}, {}, tonumber(ARGV[at])
  for i = 1, count do
    ids[i] = ARGV[at + i]
  end
  at = at + count + 1
  for i = at + 1, at + 2 * tonumber(ARGV[at]), 2 do
    payloads[tonumber(ARGV[i])] = ARGV[i + 1]
  end
  return ids, payloads, at + 2 * tonumber(ARGV[at]) + 1
end
