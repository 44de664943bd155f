-- find_one: where an id is now, as a letter, or nil
local function find_one(id)
  return redis.call('SISMEMBER', todos, id) == 1 and 't' or redis.call('SISMEMBER', in_progress, id) == 1 and 'p'
    or redis.call('SISMEMBER', done, id) == 1 and 'd' or redis.call('SISMEMBER', failed, id) == 1 and 'f'
    or polite and redis.call('SISMEMBER', waiting, id) == 1 and 'w' or redis.call('ZSCORE', scheduled, id) and 's' or nil
end

-- find: the same of many; and how many are anywhere
local function find(ids)
  if #ids == 1 then
    local state = find_one(ids[1])
    return {state}, state and 1 or 0
  end
  local where, known = {}, 0
  -- to ask for a few is as cheap as to ask whether the set is there at all
  local many = #ids > 8
  local function mark(key, letter)
    if many and redis.call('EXISTS', key) == 0 then return end
    local hits = redis.call('SMISMEMBER', key, unpack(ids))
    for i = 1, #ids do
      if hits[i] == 1 then where[i], known = letter, known + 1 end
    end
  end
  mark(todos, 't')
  mark(in_progress, 'p')
  mark(done, 'd')
  mark(failed, 'f')
  if polite then mark(waiting, 'w') end
  if not many or redis.call('EXISTS', scheduled) == 1 then
    local due = redis.call('ZMSCORE', scheduled, unpack(ids))
    for i = 1, #ids do
      if due[i] then where[i], known = 's', known + 1 end
    end
  end
  return where, known
end

-- ready: new ids become ready; gives how many they are
local function ready(ids, group)
  if polite then return enter(ids, group) end
  regroup(ids, group)
  local count = redis.call('SADD', todos, unpack(ids))
  if redis.call('SCARD', todos) == count then
    redis.call('HSET', stats, 'todos_since', now)
  end
  ring()
  return count
end

-- revive: make done and failed tasks ready, each task in one step
local function revive(ids, from, group)
  local names, count = polite and hosts_of(ids, group), 0
  for i = 1, #ids do
    local waits = names and names[i]
    redis.call('SMOVE', from[i] == 'd' and done or failed, waits and waiting or todos, ids[i])
    if not waits then count = count + 1 end
  end
  if count > 0 and redis.call('SCARD', todos) == count then
    redis.call('HSET', stats, 'todos_since', now)
  end
end

-- put_new: count what was put
local function put_new(count)
  count_up(stats, 'put', count)
  if not schema then redis.call('HSET', meta, 'schema', '2') end
end

-- fresh_ones: the usual case, in which no state knows any of the ids, costs no table
local function fresh_ones(ids, group)
  local count = ready(ids, group)
  put_new(count)
  if count == #ids then return string.rep('A', count) end
  local codes, seen, where = {}, {}, find(ids)
  for i = 1, #ids do
    codes[i] = seen[ids[i]] and where[i] or 'A'
    seen[ids[i]] = true
  end
  return table.concat(codes)
end

-- add: put the ids that no state knows into todos, or into scheduled when `due` is given; `again` brings done and
-- failed ones back. `given` are the sections of the call: of them, `group`, `payloads` and `groups` are read. An id that is named
-- twice has the payload and the group of the first time. Answers a letter an id.
local function add(ids, given, again, due)
  local where, known = find(ids)
  local group = given.group or ''
  if known == 0 and not due and not given.payloads and not given.groups then return fresh_ones(ids, group) end
  local payloads, groups = given.payloads or {}, given.groups or {}
  local fresh, codes, seen, twice = {}, {}, {}, false
  for i = 1, #ids do
    local id, state = ids[i], where[i]
    if not state and not seen[id] then
      seen[id], fresh[#fresh + 1], codes[i] = true, i, 'A'
    elseif again and not seen[id] and (state == 'd' or state == 'f') then
      seen[id], fresh[#fresh + 1], codes[i] = true, i, 'A'
    else
      codes[i] = state and not seen[id] and state or (due and 's' or 't')
      twice = twice or seen[id]
    end
  end
  local names, dues, back, from, bodies, own = {}, {}, {}, {}, {}, {}
  -- a task's payload and records are written before the task: so a script that is refused half-way leaves no task without them
  for n = 1, #fresh do
    local i = fresh[n]
    names[n] = ids[i]
    if where[i] then back[#back + 1], from[#back + 1] = ids[i], where[i] end
    if payloads[i] then
      bodies[#bodies + 1] = ids[i]
      bodies[#bodies + 1] = payloads[i]
    end
    if groups[i] then
      own[#own + 1] = ids[i]
      own[#own + 1] = groups[i]
    end
  end
  if #bodies > 0 then redis.call('HLEN', payload) end
  if group ~= '' or #own > 0 then redis.call('HLEN', prefix .. 'groups') end
  if #back > 0 then
    may_clear()
    redis.call('ZREM', done_at, unpack(back)) -- also makes a full server allow what follows, as even_when_full() does
    clear(back)
  end
  if #bodies > 0 then redis.call('HSET', payload, unpack(bodies)) end
  if #own > 0 then
    -- the group of a task goes before the group of all
    regroup(names, group)
    redis.call('HSET', prefix .. 'groups', unpack(own))
    group = ''
  end
  if due then
    for i = 1, #ids do
      if codes[i] == 'A' or codes[i] == 's' then
        dues[#dues + 1] = due
        dues[#dues + 1] = ids[i]
      end
    end
    if #dues > 0 then
      if #names > 0 then regroup(names, group) end
      redis.call('ZADD', scheduled, unpack(dues))
      rouse(due)
    end
    if #back > 0 then
      redis.call('SREM', done, unpack(back))
      redis.call('SREM', failed, unpack(back))
    end
  elseif #names > 0 then
    if #back > 0 then revive(back, from, group) end
    ready(names, group)
  end
  if #names > 0 then put_new(#names) end
  if polite and twice then
    where = find(ids)
    for i = 1, #ids do codes[i] = codes[i] == 'A' and 'A' or where[i] end
  end
  return table.concat(codes)
end

-- read_ids: ARGV[at..] = count, id * count; gives the ids, and where they end
local function read_ids(at)
  local count = tonumber(ARGV[at])
  return {unpack(ARGV, at + 1, at + count)}, at + count + 1
end
