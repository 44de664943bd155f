-- events: the event log, on a queue that uses `events`: one entry for each call that moves tasks between states. No
-- verb writes the log: call() notes what enters and leaves the keys of the states, and tell() writes what has moved
-- when the verb has come to its end.
-- events  STREAM: of each call the fields `verb`, `by` (who called, if that is known), one for each way that tasks
--         went, such as todos>in_progress: their ids, each in a line; and `offset`: how many bytes were logged before.
--         `-` is no state. In an id, a line feed is written as \n, and \ as \\. A call with many bytes of ids has
--         several entries
do
  local NOTED = ' todos waiting in_progress done failed scheduled '
  local way, told -- tasks that were told all at once, as those of most calls are; all else is noted task by task:
  local order, was, is -- the tasks in their order, and of each the states that it was in, and those that it is in
  local log, after

  local function step(id, state, left, entered)
    if not was[id] then order[#order + 1], was[id], is[id] = id, {}, {} end
    -- a task that comes back to where it was has not moved
    if left[id][state] then left[id][state] = nil else entered[id][state] = true end
  end
  local function leave(id, state) step(id, state, is, was) end
  local function enter(id, state) step(id, state, was, is) end

  -- spill: note task by task from here on, first those that were told all at once
  local function spill()
    if not order then order, was, is = {}, {}, {} end
    if not told then return end
    local from, to = string.match(way, '^(.*)>(.*)$')
    for i = 1, #told do
      if from ~= '-' then leave(told[i], from) end
      if to ~= '-' then enter(told[i], to) end
    end
    told = nil
  end

  -- note: run a command that changes the key of a state, and note what it changes
  local function note(state, command, name, ...)
    spill()
    local words = {...}
    if command == 'SMOVE' then
      local moved = quiet(command, name, ...)
      if moved == 1 then
        leave(words[2], state)
        enter(words[2], string.sub(words[1], after))
      end
      return moved
    end
    local ids, change, there = words, enter, false
    if command == 'SREM' or command == 'ZREM' then change, there = leave, true end
    if command == 'ZADD' then
      ids = {}
      for i = 2, #words, 2 do ids[#ids + 1] = words[i] end
    end
    local known = quiet(state == 'scheduled' and 'ZMSCORE' or 'SMISMEMBER', name, unpack(ids))
    local reply = quiet(command, name, ...)
    for i = 1, #ids do
      local was_there = known[i] and known[i] ~= 0
      if (was_there and true or false) == there then change(ids[i], state) end
    end
    return reply
  end

  -- noted: a command; one that changes the key of a state is noted
  local function noted(command, name, ...)
    if command == 'SMOVE' or command == 'SREM' or command == 'SADD' or command == 'ZADD' or command == 'ZREM' then
      local state = string.sub(name, after)
      if string.find(NOTED, ' ' .. state .. ' ', 1, true) then return note(state, command, name, ...) end
    end
    return quiet(command, name, ...)
  end

  function events.begin()
    logging, call = true, noted
    way, told, order, log, after = nil, nil, nil, key.events, #prefix + 1
  end

  -- moved: quiet() has moved these tasks; nil is no state, and with `some_twice` an id may be there twice
  function events.moved(ids, from, to, some_twice)
    if #ids == 0 then return end
    if told or some_twice or order then spill() end
    way, told = (from and string.sub(from, after) or '-') .. '>' .. (to and string.sub(to, after) or '-'), ids
    if order then spill() end
  end

  -- ways_of: the ways that tasks went, in their order, and the tasks of each
  local function ways_of()
    if not order then return {way}, {[way] = told} end
    local ways, ids_of = {}, {}
    for _, id in ipairs(order) do
      local from, to = next(was[id]), next(is[id])
      local name = (from or '-') .. '>' .. (to or '-')
      if (from or to) and not ids_of[name] then ways[#ways + 1], ids_of[name] = name, {} end
      if from or to then table.insert(ids_of[name], id) end
    end
    return ways, ids_of
  end

  -- lines: these ids as text, each in a line
  local function lines(ids, first, last)
    local text = table.concat(ids, '', first, last)
    if not (string.find(text, '\n', 1, true) or string.find(text, '\\', 1, true)) then return table.concat(ids, '\n', first, last) end
    local escaped = {} -- a list of its own: the reply of the verb may hold the ids
    for i = first, last do escaped[#escaped + 1] = string.gsub(string.gsub(ids[i], '\\', '\\\\'), '\n', '\\n') end
    return table.concat(escaped, '\n')
  end

  -- tell: write what has moved: entries of 64 KiB, a little more or less
  function events.tell(verb, by)
    if not told and not order then return end
    local ways, ids_of = ways_of()
    local begins, least = by == '' and {'verb', verb} or {'verb', verb, 'by', by}, 44 + #verb + #by
    local words, size = {unpack(begins)}, least
    local function write()
      words[#words + 1], words[#words + 2] = 'offset', whole(count_up(key.stats, 'logged', size) - size)
      quiet('XADD', log, '*', unpack(words))
      words, size = {unpack(begins)}, least
    end
    for _, name in ipairs(ways) do
      local ids, first, to = ids_of[name], 1, string.match(name, '>(.*)$')
      -- of a queue that keeps no done tasks, or no ids of them, an ack and a pull take the task out of all states
      local ended = to == 'done' or to == 'failed' or to == '-' and (verb == 'ack' or verb == 'pull')
      while first <= #ids and (ended or not has('ends')) do
        local last = first
        size = size + #ids[first] + #name + 10
        while last < #ids and size < 65536 do
          last = last + 1
          size = size + #ids[last] + 1
        end
        words[#words + 1], words[#words + 2] = name, lines(ids, first, last)
        first = last + 1
        if size >= 65536 then write() end
      end
    end
    if #words > #begins then write() end
  end

  -- trim: drop the oldest 10,000 entries at most; gives whether more are to go. Bisection finds the first that stays
  function events.trim()
    local most = number(string.match(call('HGET', key.meta, 'events') or '', '^%d+'))
    local logged = number(call('HGET', key.stats, 'logged'), 0)
    local function offset_of(entry)
      for i = 1, #entry[2], 2 do
        if entry[2][i] == 'offset' then return number(entry[2][i + 1], 0) end
      end
      return 0
    end
    local first = call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
    if not most or not first or logged - offset_of(first) <= most then return false end
    local low, high = tonumber(string.match(first[1], '^%d+')), now + 1
    while low < high do
      local middle = math.floor((low + high) / 2)
      local entry = call('XRANGE', log, whole(middle), '+', 'COUNT', 1)[1]
      if entry and offset_of(entry) < logged - most then low = middle + 1 else high = middle end
    end
    return call('XTRIM', log, 'MINID', '~', whole(low), 'LIMIT', 10000) >= 9000
  end
end
