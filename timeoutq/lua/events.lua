-- events: the event log. A queue that uses `events` has one entry for each call that moves tasks between states. No verb writes the log
-- by itself: on such a queue, call() notes what enters and leaves the keys of the states; and when the verb has come to its end, tell()
-- writes what has moved. So no verb can forget the log, and on any other queue nothing is noted.
-- events  STREAM: of each call the fields `verb`, `by` (who called, if that is known), one for each way that tasks went, such as
--         todos>in_progress: their ids, each in a line; and `offset`: how many bytes were logged before. `-` is no state. In an id, a line
--         feed is written as \n, and \ as \\. A call with many bytes of ids has several entries
-- moved   moves by quiet(), which are not noted: these tasks have gone from one key of a state, or from no state (nil), to another, or to none (nil); `some_twice` if an id may
--         be there twice. Only on a queue with a log
-- tell    write what has moved
do
  -- what has moved: of tasks that were told all at once, the way and the tasks; all else is in `notes`
  local way, told, notes, log, after

  -- take_notes: begin to note task by task: of each task the states that it was in, and those that it is in. These functions are made
  -- only now, because most calls tell all of their tasks at once
  local function take_notes()
    local order, was, is = {}, {}, {}

    local function step(id, state, left, entered)
      if not was[id] then order[#order + 1], was[id], is[id] = id, {}, {} end
      -- a task that comes back to where it was has not moved
      if left[id][state] then left[id][state] = nil else entered[id][state] = true end
    end
    local function leave(id, state) step(id, state, is, was) end
    local function enter(id, state) step(id, state, was, is) end

    -- spill: tasks that were told all at once are noted one by one, for some of them may move again
    local function spill()
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

    -- ways_of: the ways that tasks went, in their order, and the tasks of each
    local function ways_of()
      local ways, ids_of = {}, {}
      local function goes(id, from, to)
        local name = from .. '>' .. to
        if not ids_of[name] then ways[#ways + 1], ids_of[name] = name, {} end
        table.insert(ids_of[name], id)
      end
      for _, id in ipairs(order) do
        local from, to = next(was[id]), next(is[id])
        if from or to then goes(id, from or '-', to or '-') end
        -- a foreign hand had put the task into several states
        for more in pairs(was[id]) do
          if more ~= from then goes(id, more, '-') end
        end
        for more in pairs(is[id]) do
          if more ~= to then goes(id, '-', more) end
        end
      end
      return ways, ids_of
    end
    notes = {spill = spill, note = note, ways_of = ways_of}
  end

  -- noted: a command; one that changes the key of a state is noted
  local function noted(command, name, ...)
    if command == 'SMOVE' or command == 'SREM' or command == 'SADD' or command == 'ZADD' or command == 'ZREM' then
      local state = string.sub(name, after)
      if string.find(' todos waiting in_progress done failed scheduled ', ' ' .. state .. ' ', 1, true) then
        if not notes then take_notes() end
        return notes.note(state, command, name, ...)
      end
    end
    return quiet(command, name, ...)
  end

  function events.begin()
    logging, call = true, noted
    way, told, notes, log, after = nil, nil, nil, key.events, #prefix + 1
  end

  function events.moved(ids, from, to, some_twice)
    if #ids == 0 then return end
    if (told or some_twice) and not notes then take_notes() end
    if notes then notes.spill() end
    way, told = (from and string.sub(from, after) or '-') .. '>' .. (to and string.sub(to, after) or '-'), ids
    if notes then notes.spill() end
  end

  -- write: add an entry, which is so many bytes
  local function write(words, size)
    local before = count_up(key.stats, 'logged', size) - size
    words[#words + 1], words[#words + 2] = 'offset', string.format('%.0f', before)
    local reply = try('XADD', log, '*', unpack(words))
    if type(reply) == 'table' then
      -- a foreign hand gave the stream the last id that there is: it begins anew
      if string.find(tostring(reply.err), 'last possible ID', 1, true) then call('DEL', log) end
      call('XADD', log, '*', unpack(words))
    end
  end

  function events.tell(verb, by)
    if not told and not notes then return end
    local ways, ids_of = {way}, {[way or ''] = told}
    if notes then ways, ids_of = notes.ways_of() end
    local ended_only, ends = has('ends'), verb == 'ack' or verb == 'pull'
    local words, size, used = {'verb', verb, 'by', by}, 44 + #verb + #by, 4
    if by == '' then words, used = {'verb', verb}, 2 end
    for _, name in ipairs(ways) do
      local ids, first, to = ids_of[name], 1, string.match(name, '>(.*)$')
      -- of a queue that keeps no done tasks, or no ids of them, an ack and a pull take the task out of all states
      local ended = to == 'done' or to == 'failed' or to == '-' and ends
      if ended_only and not ended then first = #ids + 1 end
      while first <= #ids do
        local last, bytes = first, size + #ids[first] + #name + 10
        while last < #ids and bytes < 65536 do
          last = last + 1
          bytes = bytes + #ids[last] + 1
        end
        local text = table.concat(ids, '', first, last)
        if string.find(text, '\n', 1, true) or string.find(text, '\\', 1, true) then
          -- in a list of its own: the reply of the verb may hold the ids
          local lines = {}
          for i = first, last do lines[#lines + 1] = string.gsub(string.gsub(ids[i], '\\', '\\\\'), '\n', '\\n') end
          text = table.concat(lines, '\n')
        else
          text = table.concat(ids, '\n', first, last)
        end
        words[used + 1], words[used + 2] = name, text
        used, size, first = used + 2, bytes, last + 1
        if size >= 65536 then
          write(words, size)
          words, size, used = {'verb', verb, 'by', by}, 44 + #verb + #by, 4
          if by == '' then words, used = {'verb', verb}, 2 end
        end
      end
    end
    if words[5] or by == '' and words[3] then write(words, size) end
  end

  -- trim: drop the oldest entries, whole nodes of the stream, at most some 10,000 entries a call; gives whether more are to go. Each entry
  -- says how many bytes were logged before it: so the first entry that stays is found by bisection, between the times of first and last
  function events.trim()
    local most = number(string.match(call('HGET', key.meta, 'events') or '', '^%d+'))
    local logged = number(call('HGET', key.stats, 'logged'), 0)
    local function offset_of(entry)
      for i = 1, #entry[2], 2 do
        if entry[2][i] == 'offset' then return number(entry[2][i + 1], 0) end
      end
      return 0 -- a foreign hand's entry
    end
    local first = call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
    if not most or not first or logged - offset_of(first) <= most then return false end
    local low, high = tonumber(string.match(first[1], '^%d+')), now + 1
    while low < high do
      local middle = math.floor((low + high) / 2)
      local entry = call('XRANGE', log, string.format('%.0f', middle), '+', 'COUNT', 1)[1]
      if entry and offset_of(entry) < logged - most then low = middle + 1 else high = middle end
    end
    return call('XTRIM', log, 'MINID', '~', string.format('%.0f', low), 'LIMIT', 10000) >= 9000
  end
end
