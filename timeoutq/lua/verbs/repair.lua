-- repair: walk through the queue, one part per call. Mend what a foreign hand has deleted or added, and what is left of a
-- script that was refused half-way. A task in two states keeps the state that loses nothing; a task in no state comes back.
-- ARGS  1 call id   2 age of the call, ms   3 at most, number: how many ids to look at   4 cursor: where the walk goes on: '' at first; + to go
--       on where the last call of any client ended   5 mend, 0 or 1: 0 to count only
-- Reply {cursor, looked at number, (finding, how often number) *}: where the walk goes on, or '' at its end
-- What was found:
--       twice      a task in two states
--       unleased   a task in progress without a lease or an owner
--       astray     a lease, or a place in a lane, of a task that is in no state
--       stale      a lease or an owner of a task that is not in progress
--       unqueued   a task that waits, but is in no lane, or its host has no turn, or one later than its rules say
--       placeless  a task that is ready or in progress without a place of its host
--       overrun    a ready task whose host has more tasks ready or in progress than it may, while nobody takes any back
--       unlocked   a lock that does not agree with the lease
--       haunted    a place of a host that is not used by its task
--       leftover   a record of a task that is in no state; it is removed when it has been seen so twice, a minute apart
--       noted      such a record that was seen for the first time, or less than a minute ago
--       locked     a lock of an id that nothing else knows, and that is no lease's
--       turnless   a host that has no turn, and is known by a record only
--       unpacked   a done task that is kept as an id, on a queue that keeps fingerprints
--       tickless   a schedule whose next tick is not the one of its record
--       undefined  what is left of a schedule that has lost its definition; it is removed
--       unsettled  a batch that has not counted the end of its last tasks, or whose tasks have forgotten it
--       ungrouped  a failed task that no kind of failure counts
--       mistaken   a task that a kind of failure counts, and that is not failed, or whose kind has no text of its own
--       unserved   a task that waits for a host on a queue without turns: this is not mended; from a lane it goes to waiting
--       odd KEY, odd KEY FIELD   a value that is none of this key's: it is removed, for it counts as absent; a task with such a
--                  due time becomes due, a lease with such a deadline ends, rules for all hosts become the usual ones, and of
--                  a host's rules the others stay
verb('repair', {flags = {'allow-oom'}}, function()
  walk.begin()
  local n, cursor, mends, shared = tonumber(args[3]), args[4], args[5] == '1', false
  if cursor == '+' then
    shared, cursor = true, call('HGET', key.meta, 'walk') or ''
  end
  -- the walk comes to tasks before it comes to a set of fingerprints that is of a foreign type
  by_print.lenient()
  -- while the queue begins or ends to give turns, what stands in todos has no place yet
  local placed = call('HEXISTS', key.meta, 'converting') == 0
  local found, looked, changed = {}, 0, false
  local function wrong(what)
    found[what] = (found[what] or 0) + 1
    if mends and not changed then
      changed = true
    end
    return mends
  end
  local leftovers = key.leftovers

  -- settle: make sure that each id is in one state, and that its lease, its place and its lane agree with this state. `missing` is
  -- the state to which an id in no state comes back; with false, such an id stays in no state, and its lease is removed
  local function settle(ids, missing, lane)
    local states, deadlines, held = find.everywhere(ids)
    local names, locks = ready.hosts_of(ids), leases.locks_of(ids)
    if waiting then hosts.load(names) end
    local waits, wait_names, free = {}, {}, {}
    for i = 1, #ids do
      local id, state, deadline = ids[i], states[i], moment(deadlines[i])
      if #state > 1 then
        local keep = walk.best(state, deadline and deadline > now)
        if wrong('twice') then
          for other in string.gmatch(state, '.') do
            if other ~= keep then walk.take_out(other, id) end
          end
        end
        state = keep
      elseif state == '' and missing then
        if wrong('astray') then call('SADD', missing, id) end
        state = missing == key.in_progress and 'p' or missing == key.todos and 't' or 'w'
      end
      local name = names[i]
      if state == 'p' then
        if not deadline then
          if wrong('unleased') then
            -- the lease gets the time that the lock has left. Without a lock, the task gets a lease that nobody owns, of a minute
            -- at most (the longest lease that the queue ever gave may be days), and comes back when this lease runs out
            local left = call('PTTL', locks[i])
            deadline = now + (left > 0 and left or math.min(number(setting.lease_ms, 30000), 60000))
            call('ZADD', key.leases, deadline, id)
            count_up(key.stats, 'adopted', 1)
            wake.rouse(deadline)
          end
        end
        local token = try('GET', locks[i])
        if not held[i] and (not deadlines[i] or wrong('unleased')) and mends then
          call('HSET', key.owners, id, type(token) == 'string' and token or '?')
        elseif held[i] and held[i] ~= '?' and token ~= held[i] and deadlines[i] and deadline > now + 100 then
          -- the lock only shows the lease to other clients; it may end a moment before the lease
          if wrong('unlocked') then call('PSETEX', locks[i], deadline - now, held[i]) end
        end
        if placed and name and not hosts.holds(name, id) and wrong('placeless') then
          hosts.occupy(name, id)
          local one = hosts.load({name})[name]
          if hosts.crowded(one) then hosts.recall(one) end
        end
      elseif deadline or held[i] then
        if wrong('stale') then
          call('DEL', locks[i])
          call('ZREM', key.leases, id)
          call('HDEL', key.owners, id)
          call('HDEL', key.runtime, id)
        end
      end
      if state ~= 'p' then free[#free + 1] = locks[i] end
      if placed and state == 't' and name and not hosts.holds(name, id) and wrong('placeless') then
        call('SMOVE', key.todos, waiting, id)
        waits[#waits + 1], wait_names[#waits + 1] = id, name
      elseif placed and state == 't' and name and hosts.overrun(name) then
        if wrong('overrun') then hosts.recall(hosts.load({name})[name]) end
      elseif state == 'w' and not waiting then
        wrong('unserved')
      elseif state == 'w' and not name then
        if wrong('unqueued') then call('SMOVE', waiting, key.todos, id) end
      elseif state == 'w' then
        local turn_at = call('ZSCORE', key.hosts, name)
        if not turn_at or not call('ZSCORE', named('host:' .. name), id) or hosts.late(name, turn_at) then
          if wrong('unqueued') then waits[#waits + 1], wait_names[#waits + 1] = id, name end
        end
      end
      if lane and (state ~= 'w' or name ~= lane) and wrong('unqueued') then
        call('ZREM', named('host:' .. lane), id)
      end
      states[i] = state
    end
    if #free > 0 and call('EXISTS', unpack(free)) > 0 and wrong('unlocked') then call('DEL', unpack(free)) end
    if #waits > 0 then ready.arrive(waits, wait_names) end
    return states, names
  end

  -- odd: remove the fields of a hash whose values cannot be read. `reads` reads a value; as a table, it has a reader for each field
  -- that is looked at. With `by_name`, these fields are told by name
  local function odd(name, ids, values, reads, by_name)
    for i = 1, #ids do
      local read = reads
      if type(reads) == 'table' then read = reads[ids[i]] end
      if read and values[i] and not read(values[i]) and wrong('odd ' .. name .. (by_name and ' ' .. string.sub(ids[i], 1, 40) or '')) then
        if name == 'policies' then
          hosts.write_policy(hosts.load(ids)[ids[i]]) -- what can be read of them stays
        else
          call('HDEL', named(name), ids[i])
        end
        if name == 'meta' and walk.rules_of[ids[i]] then walk.rules_of[ids[i]].mend(values[i]) end
      end
    end
  end
  local function whole(text) return string.find(text, '^%-?%d+$') and number(text) end
  local function like(form)
    return function(text) return string.find(text, form) end
  end
  local of_meta = {
    lease_ms = whole, fence = whole, wake_at = whole, max_crashes = whole, grace_until = whole, durable = whole,
  }
  for name, rule in pairs(walk.rules_of) do of_meta[name] = rule.sound end
  local function of_fields(name, reads, by_name)
    return function(ids, _, values) odd(name, ids, values, reads, by_name) end
  end

  -- dated: give times to what has a score that is no time
  local function dated(name, ids, scores, at)
    for i = 1, #ids do
      if scores and not moment(scores[i]) and call('ZSCORE', named(name), ids[i]) and wrong('odd ' .. name) then
        if at then
          call('ZADD', named(name), at, ids[i])
          wake.rouse(at)
        else
          call('ZREM', named(name), ids[i])
        end
      end
    end
  end

  -- what each stage of the walk does with a page
  local function of_states(ids) settle(ids, false) end
  local function of_leases(ids, _, scores)
    dated('leases', ids, scores, now + math.min(number(setting.lease_ms, 30000), 60000))
    settle(ids, key.in_progress)
  end
  local function of_scheduled(ids, _, scores)
    dated('scheduled', ids, scores, now)
    settle(ids, false)
  end
  -- of_failed: each failed task is counted by a kind; of_kind_of: nothing else is; of_kinds: a kind is its text and its number
  local function of_failed(ids)
    settle(ids, false)
    local known, there, bare = call('ZMSCORE', key.kind_of, unpack(ids)), call('SMISMEMBER', key.failed, unpack(ids)), {}
    for i = 1, #ids do
      if there[i] == 1 and not known[i] and wrong('ungrouped') then bare[#bare + 1] = ids[i] end
    end
    if #bare > 0 then kinds.note(bare) end
  end
  local function of_kind_of(ids, _, scores)
    local there, texts, out, anew = call('SMISMEMBER', key.failed, unpack(ids)), {}, {}, {}
    for i = 1, #ids do
      local at = kinds.within(scores[i])
      if at and texts[at] == nil then
        local text = at > 0 and call('HGET', key.kinds, '#' .. at)
        texts[at] = at == 0 or text and number(call('HGET', key.kinds, '=' .. text)) == at
      end
      if (there[i] ~= 1 or not at or not texts[at]) and wrong('mistaken') then
        out[#out + 1] = ids[i]
        if there[i] == 1 then anew[#anew + 1] = ids[i] end
      end
    end
    kinds.leave(out)
    if #anew > 0 then kinds.note(anew) end
  end
  local function of_kinds(names, _, values)
    for i = 1, #names do
      local sign, rest, good = string.sub(names[i], 1, 1), string.sub(names[i], 2), false
      if sign == '#' or sign == '+' then
        local at = number(rest)
        local size = at and at >= 0 and at <= 2 * kinds.MOST and string.format('%.0f', at) == rest and kinds.size(at) or 0
        good = size > 0 and (at > 0 or sign == '+') and call('HEXISTS', key.kinds, '#' .. at) == (at > 0 and 1 or 0)
        local count = good and call('HGET', key.kinds, '+' .. at)
        if good and count ~= string.format('%.0f', size) and wrong('odd kinds') then call('HSET', key.kinds, '+' .. at, size) end
      elseif sign == '=' then
        good = call('HGET', key.kinds, '#' .. values[i]) == rest
      else
        good = names[i] == 'next' and whole(values[i])
      end
      if not good and call('HEXISTS', key.kinds, names[i]) == 1 and wrong('odd kinds') then call('HDEL', key.kinds, names[i]) end
    end
  end
  local function of_owners(ids) settle(ids, key.todos) end
  local function of_lane(ids, name)
    if not waiting then return end
    local given, named, bare = ready.hosts_of(ids), call('HMGET', key.groups, unpack(ids)), {}
    local states = find.everywhere(ids)
    for i = 1, #ids do
      -- only the lane still knows with which host the task was put
      if given[i] ~= name and not named[i] and (states[i] == '' or states[i] == 'w') then bare[#bare + 1] = ids[i] end
    end
    if #bare > 0 and wrong('unqueued') then groups.keep(bare, name) end
    settle(ids, waiting, name)
  end
  -- aged: of these leftovers, those that were seen before, a minute ago or more; a hand that renames a state may rename it back.
  -- Ten thousand leftovers at most are noted at a time, in `leftovers` with the time when they were first seen; 1 for those that
  -- have been removed, for they may have left other records
  local function aged(ids)
    local seen, old, marks = call('ZMSCORE', leftovers, unpack(ids)), {}, {}
    local room = 10000 - call('ZCARD', leftovers)
    for i = 1, #ids do
      local at = number(seen[i])
      if at and (at <= now - 60000 or at > now) then
        old[#old + 1] = ids[i]
        marks[#marks + 1], marks[#marks + 2] = 1, ids[i]
      elseif wrong('noted') and not at and room > 0 then
        room, marks[#marks + 1], marks[#marks + 2] = room - 1, now, ids[i]
      end
    end
    for _ = 1, #old do wrong('leftover') end
    if #marks > 0 then call('ZADD', leftovers, unpack(marks)) end
    return old
  end
  local function of_leftovers(ids, _, scores)
    local states, past = find.everywhere(ids), {}
    for i = 1, #ids do
      -- what is not found again for a day has been removed by somebody else
      local at = number(scores[i], 0)
      if mends and (string.find(states[i], '[ptwsf]') or at <= now - 86400000 or at > now) then past[#past + 1] = ids[i] end
    end
    if #past > 0 then call('ZREM', leftovers, unpack(past)) end
  end
  local function of_records(hash, kept_in, forget, numbers, form)
    return function(ids, _, values)
      if numbers then odd(numbers, ids, values, form or whole) end
      local states, old = find.everywhere(ids), {}
      for i = 1, #ids do
        if not string.find(states[i], kept_in or '[ptwsf]') then
          if kept_in == 'p' or not mends then wrong('leftover') end
          old[#old + 1] = ids[i]
        end
      end
      if #old == 0 or not mends then return end
      if kept_in ~= 'p' then
        old = aged(old)
        if #old == 0 then return end
      end
      if forget then return forget(old) end
      call('HDEL', hash, unpack(old))
    end
  end
  -- used_by: a foreign hand that has damaged `uses` has hidden what a capability keeps
  local function used_by(capability, see)
    return function(ids, ...)
      if #ids > 0 and not has(capability) and wrong('odd meta uses') then settings.use(capability, true) end
      return see(ids, ...)
    end
  end
  local function of_times(ids)
    local kept = done.among(ids)
    for i = 1, #ids do
      if (compact or kept[i] ~= 1) and wrong('leftover') then done.undate({ids[i]}) end
    end
  end
  local function of_ends(ids, _, scores)
    dated('done_until', ids, scores)
    of_times(ids)
  end
  local function of_seen(found, _, sum)
    if not compact then
      if mends then call('HSET', key.meta, 'keep_done', 'compact') end
      return
    end
    for i = 1, #found do
      if wrong('odd ' .. found[i]) then by_print.mend(found[i], sum) end
    end
  end
  local function of_done(ids)
    local states = find.everywhere(ids)
    for _ = 1, #ids do wrong('unpacked') end
    if mends and #ids > 0 then done.pack(ids, states) end
  end
  local function of_workers(ids)
    local beats = call('ZMSCORE', key.workers, unpack(ids))
    for i = 1, #ids do
      if not beats[i] and wrong('leftover') then call('HDEL', key.worker_info, ids[i]) end
    end
  end
  local function of_slots(names, _, values)
    if not waiting then return end
    odd('slots', names, values, like('^%d+ '))
    local turns = call('ZMSCORE', key.hosts, unpack(names))
    for i = 1, #names do
      if not turns[i] then wrong('turnless') end
    end
    local all, ids, owners_of = hosts.load(names), {}, {}
    for i = 1, #names do
      local id = all[names[i]].held
      if id then ids[#ids + 1], owners_of[#owners_of + 1] = id, names[i] end
    end
    if #ids > 0 then walk.haunts(ids, owners_of, wrong) end
  end
  local function of_places(words)
    if not waiting then return end
    local ids, names = {}, {}
    for i = 1, #words do
      local size, rest = string.match(words[i], '^(%d+):(.*)$')
      names[i], ids[i] = string.sub(rest or '', 1, size or 0), string.sub(rest or words[i], (size or 0) + 1)
    end
    walk.haunts(ids, names, wrong, words)
  end

  -- of_keys: lanes that no host's turn reaches, and locks that nothing else knows; only their own names tell of them
  local function of_keys(words)
    local names, ids = {}, {}
    for i = 1, #words do
      local what, whose = string.match(words[i], '^(%w+):(.+)$')
      if what == 'host' then names[#names + 1] = whose elseif what == 'lock' then ids[#ids + 1] = whose end
    end
    local turns, cut_off = #names > 0 and call('ZMSCORE', key.hosts, unpack(names)), {}
    for i = 1, #names do
      local waits = (not waiting or not turns[i]) and try('ZCARD', named('host:' .. names[i]))
      if type(waits) == 'number' and waits > 0 then
        local what = waiting and 'unqueued' or 'unserved'
        wrong(what)
        found[what] = found[what] + waits - 1
        cut_off[#cut_off + 1] = names[i]
      end
    end
    if waiting and mends then
      hosts.load(cut_off)
    elseif mends then
      -- nobody hands over from lanes now: their tasks wait where a person finds them, who lets them go or gives turns again
      local left = n
      for i = 1, #cut_off do
        local some = left > 0 and call('ZRANGE', named('host:' .. cut_off[i]), 0, left - 1) or {}
        left = left - #some
        if #some > 0 then
          local states = find.everywhere(some)
          for j = 1, #some do
            if states[j] == '' then call('SADD', key.waiting, some[j]) end
          end
          groups.keep(some, cut_off[i])
          call('ZREM', named('host:' .. cut_off[i]), unpack(some))
        end
      end
      if left <= 0 then return true end
    end
    if #ids == 0 then return end
    local states, deadlines, held = find.everywhere(ids)
    local known, locks = {}, leases.locks_of(ids)
    for i = 1, #ids do
      if states[i] == '' and not deadlines[i] and not held[i] then
        -- what the scripts write has an end, and names a client and its call: then a worker holds the task
        local token = try('GET', locks[i])
        if type(token) == 'string' and string.find(token, '#', 1, true) and call('PTTL', locks[i]) > 0 then
          known[#known + 1] = ids[i]
        elseif wrong('locked') then
          call('DEL', locks[i])
        end
      elseif states[i] ~= 'p' then
        known[#known + 1] = ids[i]
      end
    end
    if #known > 0 then settle(known, key.in_progress) end
  end

  -- of_ticked, of_ticks, of_definitions: a schedule is its definition; one that has lost its record goes on from now with a new one. What
  -- is left of a schedule without a definition is removed. A next tick that is not the one of the record becomes that of the record
  local function renewed(name)
    if not wrong('tickless') then return end
    schedules.write(name, {state = 'r', source = 's', rev = args[1] .. '~', digest = '-', next = now, last = 0, put = 0, skipped = 0, missed = 0, renewed = now})
    wake.rouse(now)
  end
  local function of_ticked(names, _, values)
    local nexts, texts = call('ZMSCORE', key.ticks, unpack(names)), call('HMGET', key.schedules, unpack(names))
    for i = 1, #names do
      local one = schedules.read(values[i])
      if not texts[i] then
        if wrong('undefined') then
          call('HDEL', key.ticked, names[i])
          call('ZREM', key.ticks, names[i])
        end
      elseif not one then
        renewed(names[i])
      elseif (one.state == 'r' and one.next > 0 and one.next or nil) ~= moment(nexts[i]) and wrong('tickless') then
        schedules.write(names[i], one)
        if one.state == 'r' then wake.rouse(one.next) end
      end
    end
  end
  local function of_ticks(names)
    local texts = call('HMGET', key.schedules, unpack(names))
    for i = 1, #names do
      if not texts[i] and wrong('undefined') then call('ZREM', key.ticks, names[i]) end
    end
  end
  local function of_definitions(names)
    local records = call('HMGET', key.ticked, unpack(names))
    for i = 1, #names do
      if not records[i] then renewed(names[i]) end
    end
  end

  -- of_members: these tasks have ended, and their batches count them; of_joined: only tasks that have not ended are in batches;
  -- of_batches: a batch whose tasks have all ended has ended itself
  local function of_members(ids)
    local states, done_ones, others = find.everywhere(ids), {}, {}
    for i = 1, #ids do
      if string.find(states[i], 'd', 1, true) then done_ones[#done_ones + 1] = ids[i] else others[#others + 1] = ids[i] end
    end
    if #done_ones > 0 then results.tell_ended(batches.end_in(done_ones, true)) end
    if #others > 0 then results.tell_ended(batches.end_in(others)) end
  end
  local gone_members = of_records(key.batch_of, '[ptwsfd]', of_members)
  local function of_joined(ids)
    local states, over = find.everywhere(ids), {}
    for i = 1, #ids do
      if string.find(states[i], '[df]') and not string.find(states[i], '[ptws]') then over[#over + 1] = ids[i] end
    end
    if #over > 0 and wrong('unsettled') then of_members(over) end
    gone_members(ids)
  end
  local function of_batches(names, _, values)
    for i = 1, #names do
      local name, one = names[i], batches.read(values[i])
      local all, open = batches.counts(name)
      if not one then
        if wrong('odd batches') then batches.drop(name) end
      elseif one.at + (one.state == 'o' and 604800000 or one.keep) < now and (one.state ~= 's' and open == 0) then
        if mends then batches.drop(name) end -- it has been kept for its time
      elseif one.state == 's' then
        -- tasks that have not ended stand first
        local some = open > 0 and call('ZRANGE', batches.key_of(name), 0, math.min(open, 20) - 1) or {}
        local states, of = #some > 0 and find.everywhere(some), #some > 0 and call('HMGET', key.batch_of, unpack(some))
        local rows, lost = {}, {}
        for k = 1, #some do
          if not string.find(' ' .. (of[k] or '') .. ' ', ' ' .. name .. ' ', 1, true) then
            rows[#rows + 1], rows[#rows + 2] = some[k], (of[k] and of[k] .. ' ' or '') .. name
            if not string.find(states[k], '[ptws]') then lost[#lost + 1] = some[k] end
          end
        end
        if (open == 0 or #rows > 0) and wrong('unsettled') then
          if #rows > 0 then call('HSET', key.batch_of, unpack(rows)) end
          if #lost > 0 then of_members(lost) end
          local broken = {}
          if open == 0 then batches.close(name, broken) end
          if #broken > 0 then results.tell_ended(broken) end
        end
      end
    end
  end

  local function of_beats(ids, _, scores) dated('workers', ids, scores) end

  -- lines: remove the lines of a list that cannot be read
  local function lines(name, read)
    local list, good, bad = named(name), {}, false
    for i = 0, 119 do
      local text = call('LINDEX', list, i)
      if not text then break end
      if not read(text) and wrong('odd ' .. name) then bad = true else good[#good + 1] = text end
    end
    if not bad then return end
    call('DEL', list)
    for i = #good, 1, -1 do call('LPUSH', list, good[i]) end
  end

  local stages = {
    {'NAMES', '', of_keys}, {'SSCAN', key.in_progress, of_states}, {'LANES', key.hosts, of_lane}, {'SSCAN', key.waiting, of_states},
    {'SSCAN', key.todos, of_states}, {'ZSCAN', key.scheduled, of_scheduled}, {'SSCAN', key.failed, of_failed}, {'ZSCAN', key.kind_of, of_kind_of}, {'HSCAN', key.kinds, of_kinds},
    {'ZSCAN', key.leases, of_leases},
    {'HSCAN', key.owners, of_owners}, {'HSCAN', key.runtime, of_records(key.runtime, 'p', nil, 'runtime')}, {'HSCAN', key.slots, of_slots},
    {'ZSCAN', key.places, of_places}, {'HSCAN', key.groups, of_records(key.groups)},
    {'HSCAN', key.priorities, used_by('priority', of_records(key.priorities, compact and '[ptwsf]' or '[ptwsfd]', nil, 'priorities', priority.read))},
    {'FIELDS', key.rerun, used_by('rerun', of_records(key.rerun, 'p'))},
    {'HSCAN', key.cancels, used_by('cancel', of_records(key.cancels, 'p'))},
    {'FIELDS', key.progress, used_by('progress', of_records(key.progress, 'p'))},
    {'HSCAN', key.awaited, used_by('results', of_records(key.awaited, '[ptws]'))},
    {'HSCAN', key.batch_of, used_by('batches', of_joined)}, {'HSCAN', key.batches, used_by('batches', of_batches)},
    {'FIELDS', key.payload, of_records(key.payload)}, {'HSCAN', key.attempts, of_records(key.attempts, nil, failures.clear, 'attempts')},
    {'HSCAN', key.crashes, of_records(key.crashes, nil, failures.clear, 'crashes')}, {'FIELDS', key.errors, of_records(key.errors, nil, failures.clear)},
    {'HSCAN', key.releases, of_records('releases', nil, failures.clear, 'releases', like('^%-?%d+ ?%d* ?%d* ?%d*$'))},
    {'HSCAN', key.traces, of_records('traces', nil, failures.untrace)}, {'ZSCAN', key.done_at, of_times},
    {'ZSCAN', key.done_until, used_by('until', of_ends)},
    {'HSCAN', key.worker_info, of_workers}, {'HSCAN', key.meta, of_fields('meta', of_meta, true)},
    {'HSCAN', key.stats, of_fields('stats', whole, true)}, {'HSCAN', key.durations0, of_fields('durations0', whole, true)},
    {'HSCAN', key.durations1, of_fields('durations1', whole, true)},
    {'HSCAN', key.durations, of_fields('durations', whole, true)},
    {'HSCAN', key.trace_uses, of_fields('trace_uses', whole)}, {'HSCAN', key.resting, of_fields('resting', whole)},
    {'HSCAN', key.host_failures, of_fields('host_failures', whole)},
    {'HSCAN', key.policies, of_fields('policies', waiting and function(text)
      return select(7, hosts.policy_of(text))
    end)},
    {'HSCAN', key.ticked, used_by('schedules', of_ticked)}, {'ZSCAN', key.ticks, of_ticks},
    {'FIELDS', key.schedules, used_by('schedules', of_definitions)}, {'ZSCAN', key.workers, of_beats}, {'ZSCAN', leftovers, of_leftovers}, {'SETS', key.seen, used_by('compact', of_seen)},
  }
  if compact then stages[#stages + 1] = {'SSCAN', key.done, of_done} end
  local stage, at = string.match(cursor, '^(%d+) (.*)$')
  stage, at = number(stage, 1), at or '0'
  -- where the walk goes on is kept in the queue, where a foreign hand may write
  local first = stages[stage] and (stages[stage][1] == 'LANES' or stages[stage][1] == 'SETS') and string.match(at, '^(%d+) %d+ ') or at
  if not string.find(first, '^%d+$') or #first > 19 then stage, at = 1, '0' end
  if stage == 1 and at == '0' then
    lines('history', like('^%d+ %d+ %d+ %d+ %d+ %d+$'))
    lines('error_log', function(text)
      local size, from = string.match(text, '^(%d%d?%d?%d?) ()')
      return size and string.find(text, '^%d+ ', from + size)
    end)
  end
  -- where the look through the names of all keys goes on is kept apart, for other queues may have millions of keys on this server
  local kept = shared and stage == 1 and call('HGET', key.meta, 'scan') or nil
  local scan = kept
  if kept and at == '0' and string.find(kept, '^%d+$') and #kept < 20 then at = kept end
  while looked < n and stage <= #stages do
    local how, set, see = unpack(stages[stage])
    local from, most, ids, lane, values, weight = at, n - looked, nil, nil, nil, nil
    ids, at, lane, values, weight = walk.page_of(how, set, from, most)
    -- a look that finds nothing costs time, too; and each small lane costs as much as a few tasks
    looked = looked + math.max(1, #ids) + (how == 'LANES' and 3 or 0) + (weight or 0)
    local more = #ids > 0 and see(ids, lane, values)
    if more then
      at, looked = from, n
    elseif how == 'NAMES' and shared then
      scan = at ~= '0' and at or nil
      if #ids < most then at = '0' end
    elseif how == 'NAMES' and at ~= '0' then
      looked = n
    end
    if at == '0' and not more then stage = stage + 1 end
  end
  local on = stage <= #stages and stage .. ' ' .. at or ''
  if mends then
    if waiting and changed then ready.turn() end
    if setting.paused ~= '1' and call('EXISTS', key.todos) == 1 then
      wake.ring()
    end
  end
  if scan ~= kept then
    if scan then call('HSET', key.meta, 'scan', scan) else call('HDEL', key.meta, 'scan') end
  end
  if shared and on ~= cursor then
    if on ~= '' then call('HSET', key.meta, 'walk', on) else call('HDEL', key.meta, 'walk') end
  end
  local reply = {on, looked}
  for what, count in pairs(found) do
    reply[#reply + 1], reply[#reply + 2] = what, count
  end
  return reply
end)
