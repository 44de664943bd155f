-- walk: how `repair` reads a queue
do
  -- best: choose the state that stays: the one that loses nothing. Work under way comes first, then ready tasks, then tasks that
  -- will be ready. Done comes last: a task may be done twice, but must not be left out
  function walk.best(state, live)
    for letter in string.gmatch(live and 'ptwsfd' or 'twpsfd', '.') do
      if string.find(state, letter, 1, true) then return letter end
    end
  end

  -- take_out: remove an id from one state
  function walk.take_out(state, id)
    if state == 's' then return call('ZREM', key.scheduled, id) end
    if state == 'd' then
      done.undo({id})
      return done.undate({id})
    end
    call('SREM', ({p = key.in_progress, t = key.todos, w = key.waiting, f = key.failed})[state], id)
    if state == 'f' then kinds.leave({id}) end
  end

  -- fields: read some fields of a hash whose values may be long; gives them, where to go on, and how much the reading has cost. A
  -- server that cannot leave the values out gives some at a time, with their values, of which 4 KiB cost as much as a task
  local function fields(hash, at, count)
    local page = try('HSCAN', hash, at, 'COUNT', count, 'NOVALUES')
    if not page.err then return page[2], page[1], 0 end
    page = call('HSCAN', hash, at, 'COUNT', 8)
    local ids, bytes = {}, 0
    for i = 1, #page[2], 2 do ids[#ids + 1], bytes = page[2][i], bytes + #page[2][i + 1] end
    return ids, page[1], math.floor(bytes / 4096)
  end

  -- lanes: read a page of one host's lane; `at` is the cursor of the hosts, the cursor in the lane, and the host's name
  local hosts_page

  function walk.begin() hosts_page = nil end

  local function lanes(hosts, at, count)
    local from, inner, last = string.match(at, '^(%d+) (%d+) (.*)$')
    from, inner = from or at, inner or '0'
    if not hosts_page or hosts_page.from ~= from then
      local page, names = call('ZSCAN', hosts, from, 'COUNT', 50), {}
      for i = 1, #page[2], 2 do names[#names + 1] = page[2][i] end
      table.sort(names)
      hosts_page = {from = from, names = names, next = page[1]}
    end
    -- the hosts of a page are seen in the order of their names, so that the walk knows where it was
    local names, i = hosts_page.names, 1
    while last and names[i] and (names[i] < last or names[i] == last and inner == '0') do i = i + 1 end
    local name = names[i]
    if not name then return {}, hosts_page.next end
    local lane = call('ZSCAN', named('host:' .. name), name == last and inner or '0', 'COUNT', count)
    local ids = {}
    for k = 1, #lane[2], 2 do ids[#ids + 1] = lane[2][k] end
    if lane[1] == '0' and not names[i + 1] then return ids, hosts_page.next, name end
    return ids, from .. ' ' .. lane[1] .. ' ' .. name, name
  end

  -- page_of: read on in a stage, in the key `from`: the next ids, where the stage goes on, the host whose lane holds the ids, their
  -- values or scores, if they are read, and what the reading has cost besides
  function walk.page_of(how, from, at, count)
    if how == 'LANES' then return lanes(from, at, count) end
    if how == 'FIELDS' then
      local ids, on, cost = fields(from, at, count)
      return ids, on, nil, nil, cost
    end
    local page = call(how, from, at, 'COUNT', count)
    if how == 'SSCAN' then return page[2], page[1] end
    local ids, values = {}, {}
    for i = 1, #page[2], 2 do ids[#ids + 1], values[#values + 1] = page[2][i], page[2][i + 1] end
    return ids, page[1], nil, values
  end
end
