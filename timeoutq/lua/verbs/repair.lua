-- repair: walk through the queue, one part per call. Mend what is left of a script that was refused half-way, and what a hand has
-- deleted or added. A task in two states keeps the state that loses nothing; what would be lost comes back.
-- ARGS  1 call id   2 age of the call, ms   3 at most, number: how many ids to look at   4 cursor: where the walk goes on: '' at first; + to go
--       on where the last call of any client ended   5 mend, 0 or 1: 0 to count only
-- Reply {cursor, looked at number, (finding, how often number) *}: where the walk goes on, or '' at its end
-- What was found, and is mended:
--       twice      a task in two states
--       unleased   a task in progress without a lease or an owner
--       astray     a lease, an owner, or an entry in a lane, of a task that is in no state
--       stale      a lease of a task that is not in progress, an entry in a lane or a place of a host that its task does not use
--       placeless  a ready task, or one in progress, without a place of its host, or with one more than its host has; or a task that waits
--                  where no host would hand it over
--       leftover   a record of a task that is in no state; it is removed when it has been seen so twice, a minute apart. One that the task's
--                  state has no use for goes at once; a batch counts the end of its task
--       noted      such a record that was seen for the first time, or less than a minute ago
-- What was found, and is only told:
--       unserved   a task that waits for a host on a queue without turns
--       undue      a scheduled task whose due time is no time
--       tickless   a schedule whose definition, record and next tick do not agree
--       unsettled  a batch that does not end though its tasks have
verb('repair', {flags = {'allow-oom'}}, function()
  walk.begin()
  local n, cursor, mends, shared = tonumber(args[3]), args[4], args[5] == '1', false
  if cursor == '+' then
    shared, cursor = true, call('HGET', key.meta, 'walk') or ''
  end
  -- while the queue begins or ends to give turns, what stands in todos has no place yet
  local placed = call('HEXISTS', key.meta, 'converting') == 0
  local found, looked, changed = {}, 0, false
  local function wrong(what)
    found[what] = (found[what] or 0) + 1
    changed = changed or mends
    return mends
  end

  -- settle: make sure that each id is in one state, and that its lease, its place and its lane agree with this state. `lane` is the host
  -- in whose lane the ids were found, and `missing` the state to which an id in no state comes back
  local function settle(ids, lane, scores, missing)
    local states, deadlines, held = find.everywhere(ids)
    local names, waits, wait_names = ready.hosts_of(ids), {}, {}
    if waiting then hosts.load(names) end
    for i = 1, #ids do
      local id, state, deadline, name = ids[i], states[i], moment(deadlines[i]), names[i]
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
      if state == 'p' and not (deadline and held[i]) then
        if wrong('unleased') then
          -- the lease gets the time that the lock has left. Without a lock, the task gets a lease that nobody owns, of a minute
          -- at most (the longest lease that the queue ever gave may be days), and comes back when this lease runs out
          local lock = leases.locks_of({id})[1]
          local left, token = call('PTTL', lock), try('GET', lock)
          if not deadline then
            deadline = now + (left > 0 and left or math.min(number(setting.lease_ms, 30000), 60000))
            call('ZADD', key.leases, deadline, id)
            count_up(key.stats, 'adopted', 1)
            wake.rouse(deadline)
          end
          if not held[i] then call('HSET', key.owners, id, type(token) == 'string' and token or '?') end
        end
      elseif state ~= 'p' and (deadlines[i] or held[i]) and wrong('stale') then
        leases.drop({id})
      end
      if state == 's' and scores and not moment(scores[i]) then wrong('undue') end
      if lane and waiting and (state ~= 'w' or name ~= lane) and wrong('stale') then call('ZREM', named('host:' .. lane), id) end
      if state == 'w' and not waiting then
        if not lane then wrong('unserved') end
      elseif state == 'w' and not lane then
        local turn_at = name and call('ZSCORE', key.hosts, name)
        if not (turn_at and call('ZSCORE', named('host:' .. name), id)) or hosts.late(name, turn_at) then
          if wrong('placeless') and not name then
            call('SMOVE', waiting, key.todos, id)
          elseif mends then
            waits[#waits + 1], wait_names[#waits + 1] = id, name
          end
        end
      elseif placed and name and (state == 'p' or state == 't') and not hosts.holds(name, id) then
        if wrong('placeless') and state == 't' then
          call('SMOVE', key.todos, waiting, id)
          waits[#waits + 1], wait_names[#waits + 1] = id, name
        elseif mends then
          hosts.occupy(name, id)
        end
      elseif placed and name and state == 't' and hosts.overrun(name) and wrong('placeless') then
        hosts.recall(hosts.load({name})[name])
      end
    end
    if #waits > 0 then ready.arrive(waits, wait_names) end
  end

  -- of_places: take away the places of tasks that are neither ready nor in progress at this host; each word is a member of `places`
  local function of_places(words)
    local ids, names = {}, {}
    for i = 1, waiting and #words or 0 do
      local size, rest = string.match(words[i], '^(%d+):(.*)$')
      names[i], ids[i] = string.sub(rest or '', 1, size or 0), string.sub(rest or words[i], (size or 0) + 1)
    end
    if #ids == 0 then return end
    local states, given = find.everywhere(ids), ready.hosts_of(ids)
    hosts.load(names)
    for i = 1, #ids do
      local holds = hosts.holds(names[i], ids[i])
      if not (holds and string.find(states[i], '[pt]') and given[i] == names[i]) and wrong('stale') then
        if holds then ready.depart({ids[i]}, {names[i]}, 0, 0) else call('ZREM', key.places, words[i]) end
      end
    end
  end
  local function of_slots(names)
    local all, words = waiting and hosts.load(names), {}
    for i = 1, all and #names or 0 do
      local held = all[names[i]].held
      if held then words[#words + 1] = #names[i] .. ':' .. names[i] .. held end
    end
    of_places(words)
  end

  -- is_old: was a record of this task, which is in no state, seen a minute ago or before? A hand that renames a state may rename it back.
  -- Ten thousand tasks at most are noted at a time, in `leftovers` with the time when they were first seen; 1 for one of which a record has
  -- been removed, for there may be others
  local function is_old(id)
    local at = number(call('ZSCORE', key.leftovers, id))
    local old = at and (at <= now - 60000 or at > now)
    if old then
      call('ZADD', key.leftovers, 1, id)
    elseif wrong('noted') and not at and call('ZCARD', key.leftovers) < 10000 then
      call('ZADD', key.leftovers, now, id)
    end
    return old
  end
  local function of_leftovers(ids, _, scores)
    local states = find.everywhere(ids)
    for i = 1, #ids do
      -- what is not found again for a day has been removed by somebody else
      local at = number(scores[i], 0)
      if mends and (string.find(states[i], '[ptwsf]') or at <= now - 86400000 or at > now) then call('ZREM', key.leftovers, ids[i]) end
    end
  end
  -- records: a hash has records of tasks that are in one of the states `kept_in` only; those of a task in another state go at once, and
  -- those of a task in no state a minute later, but for those that only tasks in progress have
  local function records(ids, _, _, kept_in, forget, hash)
    local states, old = find.everywhere(ids), {}
    for i = 1, #ids do
      if not string.find(states[i], kept_in) and (kept_in == 'p' or states[i] ~= '' or not mends or is_old(ids[i])) then
        wrong('leftover')
        old[#old + 1] = ids[i]
      end
    end
    if #old == 0 or not mends then return end
    if forget then forget(old) else call('HDEL', hash, unpack(old)) end
  end

  -- of_members: these tasks have ended, and their batches count them. of_batches: a batch that has been kept for its time goes
  local function of_members(ids)
    local kept = done.among(ids)
    for i = 1, #ids do results.tell_ended(batches.end_in({ids[i]}, kept[i] == 1)) end
  end
  local function of_batches(names, _, values)
    for i = 1, #names do
      local one, _, open = batches.read(values[i]), batches.counts(names[i])
      local over = one and one.state ~= 's' and open == 0 and one.at + (one.state == 'o' and 604800000 or one.keep) < now
      -- tasks that have not ended stand first
      local first = open > 0 and call('ZRANGE', batches.key_of(names[i]), 0, 0)[1]
      if over and mends then batches.drop(names[i]) end
      if one and one.state == 's' and not (first and call('HEXISTS', key.batch_of, first) == 1) then wrong('unsettled') end
    end
  end
  local function of_schedules(names)
    local records, ticks = call('HMGET', key.ticked, unpack(names)), call('ZMSCORE', key.ticks, unpack(names))
    for i = 1, #names do
      local one = schedules.read(records[i])
      if not one or (one.state == 'r' and one.next > 0 and one.next or nil) ~= moment(ticks[i]) then wrong('tickless') end
    end
  end

  local any = '[ptwsf]'
  local stages = {
    {'SSCAN', key.in_progress, settle}, {'LANES', key.hosts, settle, key.waiting}, {'SSCAN', key.waiting, settle}, {'SSCAN', key.todos, settle},
    {'ZSCAN', key.scheduled, settle}, {'SSCAN', key.failed, settle}, {'ZSCAN', key.leases, settle, key.in_progress},
    {'HSCAN', key.owners, function(ids) settle(ids, nil, nil, key.todos) end}, {'HSCAN', key.slots, of_slots}, {'ZSCAN', key.places, of_places},
    {'HSCAN', key.runtime, records, 'p'}, {'HSCAN', key.cancels, records, 'p'}, {'FIELDS', key.rerun, records, 'p'}, {'FIELDS', key.progress, records, 'p'},
    {'FIELDS', key.payload, records, any}, {'HSCAN', key.groups, records, any}, {'HSCAN', key.priorities, records, compact and any or '[ptwsfd]'},
    {'HSCAN', key.awaited, records, '[ptws]'}, {'HSCAN', key.batch_of, records, '[ptws]', of_members},
    {'HSCAN', key.attempts, records, any, failures.clear}, {'HSCAN', key.crashes, records, any, failures.clear},
    {'FIELDS', key.errors, records, any, failures.clear}, {'HSCAN', key.releases, records, any, failures.clear},
    {'HSCAN', key.traces, records, any, failures.untrace}, {'HSCAN', key.batches, of_batches}, {'FIELDS', key.schedules, of_schedules},
    {'ZSCAN', key.leftovers, of_leftovers},
  }
  local stage, at = string.match(cursor, '^(%d+) (.*)$')
  stage, at = number(stage, 1), at or '0'
  -- where the walk goes on is kept in the queue, where a hand may write
  local first = stages[stage] and stages[stage][1] == 'LANES' and string.match(at, '^(%d+) %d+ ') or at
  if not string.find(first, '^%d+$') or #first > 19 then stage, at = 1, '0' end
  while looked < n and stage <= #stages do
    local how, set, see, which, forget = unpack(stages[stage])
    local ids, lane, values, weight
    ids, at, lane, values, weight = walk.page_of(how, set, at, n - looked)
    -- a look that finds nothing costs time, too; and each small lane costs as much as a few tasks
    looked = looked + math.max(1, #ids) + (how == 'LANES' and 3 or 0) + (weight or 0)
    if #ids > 0 then see(ids, lane, values, which, forget, set) end
    if at == '0' then stage = stage + 1 end
  end
  local on = stage <= #stages and stage .. ' ' .. at or ''
  if waiting and changed then ready.turn() end
  if mends and setting.paused ~= '1' and call('EXISTS', key.todos) == 1 then wake.ring() end
  if shared and on ~= cursor then
    if on ~= '' then call('HSET', key.meta, 'walk', on) else call('HDEL', key.meta, 'walk') end
  end
  local reply = {on, looked}
  for what, count in pairs(found) do
    reply[#reply + 1], reply[#reply + 2] = what, count
  end
  return reply
end)
