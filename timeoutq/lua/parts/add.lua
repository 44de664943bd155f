-- add: how tasks come into the queue
-- PARTS find log raise anew batch
-- bring_back: done and failed tasks become ready, each task in one step
local function bring_back(ids, from, group)
  local names, count = hosts_of(ids, group), 0
  for i = 1, #ids do
    local into = entry(names[i])
    if from[i] == 'd' then revive(ids[i], into) else redis.call('SMOVE', failed, into, ids[i]) end
    if into == todos then count = count + 1 end
  end
  if count > 0 and redis.call('SCARD', todos) == count then
    redis.call('HSET', stats, 'todos_since', now)
  end
end

-- put_new: count what was put
local function put_new(count)
  count_up(stats, 'put', count)
  if not schema then redis.call('HSET', meta, 'schema', '3') end
end

-- fresh_ones: the usual case, in which no state knows any of the ids, costs no table
local function fresh_ones(ids, group)
  local count = ready(ids, group)
  put_new(count)
  if count == #ids then return string.rep('A', count) end
  local codes, seen, where = {}, {}, find_all(ids)
  for i = 1, #ids do
    codes[i] = seen[ids[i]] and where[i] or 'A'
    seen[ids[i]] = true
  end
  return table.concat(codes)
end

-- add_some: add() where a state knows some of the ids, or where there is more to write. where[i] is the letter of the state that
-- holds ids[i], and `known` says how many of the ids are in any
local function add_some(ids, given, again, due, priorities, where, known)
  local lapsed = known > 0 and (has('until') or given.unique) and lapsed_of(ids, where, given.unique) or {}
  if known > 0 and has('batches') then tell_callbacks(ids, where) end
  local group = given.group or ''
  local payloads, groups = given.payloads or {}, given.groups or {}
  local fresh, codes, seen, twice = {}, {}, {}, false
  local chosen, changes, before = priorities and chosen_of(ids, priorities, where) or seen, {}, nil
  if priorities and known > 0 then changes, before = raised_by(ids, where, priorities, chosen, given.improve) end
  local anew = {}
  if given.rerun then chosen, anew = newest_of(ids, where, given.rerun, chosen, changes) end
  for i = 1, #ids do
    local id, state = ids[i], where[i]
    local first = (chosen[id] or i) == i
    if first and (not state or again and (state == 'd' or state == 'f') or lapsed[i] or (anew[i] or changes[i]) == 'back') then
      seen[id], fresh[#fresh + 1], codes[i] = i, i, 'A'
    elseif state == 'b' then
      codes[i] = 's' -- the callback of a batch waits for the batch, whatever a put says of it
    elseif anew[i] or changes[i] then
      codes[i] = changes[i] and 'r' or anew[i] == 'marked' and 'n' or state
    else
      codes[i] = state and not seen[id] and state or (due and 's' or 't')
      twice = twice or not first
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
  if #bodies > 0 or next(changes) or next(anew) then redis.call('HLEN', payload) end
  if given.rerun then redis.call('HLEN', key('rerun')) end
  if group ~= '' or #own > 0 then redis.call('HLEN', key('groups')) end
  if #back > 0 then may_clear() end
  -- a full server refuses a put, but no script that has deleted anything: so it is asked before the first deletion, and only then
  if #back > 0 or next(changes) or next(anew) or store_priorities and (priorities or has('priority')) then
    redis.call('HSETNX', meta, 'schema', '3')
  end
  if #back > 0 then
    undate(back)
    leave_kinds(back)
    clear(back)
  end
  if #bodies > 0 then redis.call('HSET', payload, unpack(bodies)) end
  if next(changes) then raise(ids, where, priorities, changes, before, payloads) end
  if next(anew) then put_anew(ids, where, anew, payloads, priorities) end
  if store_priorities and (priorities or has('priority')) then store_priorities(ids, fresh, where, priorities) end
  if #own > 0 then
    -- the group of a task goes before the group of all
    regroup(names, group)
    redis.call('HSET', key('groups'), unpack(own))
    group = ''
  end
  if due then
    for i = 1, #ids do
      if codes[i] == 'A' or where[i] == 's' then
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
      undo(back)
      redis.call('SREM', failed, unpack(back))
    end
  elseif #names > 0 then
    if #back > 0 then bring_back(back, from, group) end
    ready(names, group)
  end
  if #names > 0 then put_new(#names) end
  if waiting and twice then
    where = find_all(ids)
    for i = 1, #ids do codes[i] = (codes[i] == 'A' or codes[i] == 'r' or codes[i] == 'n') and codes[i] or where[i] end
  end
  return table.concat(codes)
end

-- add: put the ids that no state knows into todos, or into scheduled when `due` is given; `again` brings done and
-- failed ones back. `given` are the sections of the call: of them, `group`, `payloads`, `groups`, `improve`,
-- `unique` and `rerun` are read.
-- `priorities` is what priorities_of() gives. An id that is named twice has the payload and the group of the first time, or of
-- the time with the highest priority; with rerun, of the last time with rerun. Answers a letter per id.
local function add(ids, given, again, due, priorities)
  local where, known = find_all(ids)
  local group = given.group or ''
  if known == 0 and not due and not given.payloads and not given.groups and not priorities and not has('priority') then
    return fresh_ones(ids, group)
  end
  return rarely('add_some')(ids, given, again, due, priorities, where, known)
end

-- read_ids: ARGV[at..] = count, id * count; gives the ids, and where they end
local function read_ids(at)
  local count = tonumber(ARGV[at])
  return {unpack(ARGV, at + 1, at + count)}, at + count + 1
end
