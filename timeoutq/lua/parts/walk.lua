-- walk: how `repair` reads a queue
-- PARTS ready done where switch
-- rules_of: settings of capabilities: how one that stands in meta is judged, and mended. One that cannot be read becomes what the
-- scripts take it for; one that `uses` does not name was there before a foreign hand has damaged `uses`
local rules_of = {politeness = {
  sound = function(text) return polite and text == rules end,
  mend = function(text)
    redis.call('HSET', meta, 'politeness', rules or text)
    if not polite then use('politeness', true) end
  end,
}, keep_done = {
  sound = function(text)
    if compact then return text == 'compact' end
    return text == 'forever' or text == 'no' or string.find(text, '^[nt]%d+$') and number(string.sub(text, 2))
  end,
  mend = function()
    if compact then redis.call('HSET', meta, 'keep_done', 'compact') end
  end,
}}

-- best: choose the state that stays: the one that loses nothing. Work under way comes first, then ready tasks, then tasks that
-- will be ready. Done comes last: a task may be done twice, but must not be left out
local function best(state, live)
  for letter in string.gmatch(live and 'ptwsfd' or 'twpsfd', '.') do
    if string.find(state, letter, 1, true) then return letter end
  end
end

-- take_out: remove an id from one state
local function take_out(state, id)
  if state == 's' then return redis.call('ZREM', scheduled, id) end
  if state == 'd' then
    undo({id})
    return undate({id})
  end
  redis.call('SREM', ({p = in_progress, t = todos, w = key('waiting'), f = failed})[state], id)
  if state == 'f' then leave_kinds({id}) end
end

-- haunts: take away the places of tasks that are neither ready nor in progress at this host; `words` are the members of `places`
local function haunts(ids, names, wrong, words)
  local states, given = where_all(ids), hosts_of(ids)
  load_hosts(names)
  for i = 1, #ids do
    -- a foreign hand has deleted the task's state, and only its place is left: the task comes back
    if states[i] == '' and wrong('astray') then
      redis.call('SADD', todos, ids[i])
      states[i] = 't'
    end
    local out = states[i] == '' or string.find(states[i], '[pt]') and given[i] == names[i]
    local has = holds(names[i], ids[i])
    if not (out and has) and wrong('haunted') then
      if has then
        depart({ids[i]}, {names[i]}, 0, 0)
      elseif words then
        redis.call('ZREM', key('places'), words[i])
      end
    end
  end
end

-- fields: read some fields of a hash whose values may be long; gives them, where to go on, and how much the reading has cost. A
-- server that cannot leave the values out gives some at a time, with their values, of which 4 KiB cost as much as a task
local function fields(hash, at, count)
  local page = redis.pcall('HSCAN', hash, at, 'COUNT', count, 'NOVALUES')
  if not page.err then return page[2], page[1], 0 end
  page = redis.call('HSCAN', hash, at, 'COUNT', 8)
  local ids, bytes = {}, 0
  for i = 1, #page[2], 2 do ids[#ids + 1], bytes = page[2][i], bytes + #page[2][i + 1] end
  return ids, page[1], math.floor(bytes / 4096)
end

-- names_of: read the names of some lanes and locks, from the names of all keys of the server; twelve thousand of those at most
local function names_of(at, count)
  local found, scan = {}, redis.pcall -- a user who may not scan does without
  for _ = 1, 24 do
    local page = scan('SCAN', at, 'MATCH', key('[hl]o[sc][tk]:*'), 'COUNT', 500)
    if page.err then return found, '0' end
    for i = 1, #page[2] do found[#found + 1] = string.sub(page[2][i], #key('') + 1) end
    at = page[1]
    if at == '0' or #found >= count then break end
  end
  return found, at
end

-- lanes: read a page of one host's lane; `at` is the cursor of the hosts, the cursor in the lane, and the host's name
local hosts_page
local function lanes(hosts, at, count)
  local from, inner, last = string.match(at, '^(%d+) (%d+) (.*)$')
  from, inner = from or at, inner or '0'
  if not hosts_page or hosts_page.from ~= from then
    local page, names = redis.call('ZSCAN', hosts, from, 'COUNT', 50), {}
    for i = 1, #page[2], 2 do names[#names + 1] = page[2][i] end
    table.sort(names)
    hosts_page = {from = from, names = names, next = page[1]}
  end
  -- the hosts of a page are seen in the order of their names, so that the walk knows where it was
  local names, i = hosts_page.names, 1
  while last and names[i] and (names[i] < last or names[i] == last and inner == '0') do i = i + 1 end
  local name = names[i]
  if not name then return {}, hosts_page.next end
  local lane = redis.call('ZSCAN', key('host:' .. name), name == last and inner or '0', 'COUNT', count)
  local ids = {}
  for k = 1, #lane[2], 2 do ids[#ids + 1] = lane[2][k] end
  if lane[1] == '0' and not names[i + 1] then return ids, hosts_page.next, name end
  return ids, from .. ' ' .. lane[1] .. ' ' .. name, name
end

-- page_of: read on in a stage, in the key `from`: the next ids, where the stage goes on, the host whose lane holds the ids, their
-- values or scores, if they are read, and what the reading has cost besides
local function page_of(how, from, at, count)
  if how == 'LANES' then return lanes(from, at, count) end
  if how == 'NAMES' then return names_of(at, count) end
  if how == 'SETS' then
    if not compact then return redis.call('EXISTS', from) == 1 and {'seen'} or {}, '0' end
    local found, on, cost, sum = look_through(at, count)
    return found, on, nil, sum, cost
  end
  if how == 'FIELDS' then
    local ids, on, cost = fields(from, at, count)
    return ids, on, nil, nil, cost
  end
  local page = redis.call(how, from, at, 'COUNT', count)
  if how == 'SSCAN' then return page[2], page[1] end
  local ids, values = {}, {}
  for i = 1, #page[2], 2 do ids[#ids + 1], values[#values + 1] = page[2][i], page[2][i + 1] end
  return ids, page[1], nil, values
end
