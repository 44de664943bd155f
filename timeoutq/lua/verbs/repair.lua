-- repair: walk through the queue, one part per call. Mend what is left of a call that was refused half-way, and what a
-- hand has deleted or added. A task in two states keeps the state that loses nothing; what would be lost comes back.
-- ARGS  1 call id   2 age of the call, ms   3 at most, number: how many ids to look at   4 cursor: where the walk goes
--       on: '' at first; + to go on where the last call of any client ended   5 mend, 0 or 1: 0 to count only
-- Reply {cursor, looked at number, (finding, how often number) *}: where the walk goes on, or '' at its end
-- What was found, and is mended:
--       twice      a task in two states
--       unleased   a task in progress without a lease or an owner
--       astray     a lease, an owner, or an entry in a lane, of a task that is in no state
--       stale      a lease of a task that is not in progress, an entry in a lane or a place of a host that its task
--                  does not use
--       placeless  a ready task, or one in progress, without a place of its host, or with one more than its host has;
--                  or a task that waits where no host would hand it over
--       leftover   a record of a task that is in no state; it is removed when it has been seen so twice, a minute
--                  apart. One that the task's state has no use for goes at once; a batch counts the end of its task
--       noted      such a record that was seen for the first time, or less than a minute ago
-- What was found, and is only told:
--       unserved   a task that waits for a host on a queue without turns
--       undue      a scheduled task whose due time is no time
--       tickless   a schedule whose definition, record and next tick do not agree
--       unsettled  a batch that does not end though its tasks have
do
  local found, mends, changed -- what this call has found, how often; whether it mends; whether it has
  local placed -- whether ready tasks have places: not while the queue begins or ends to give turns
  local waits, wait_names -- tasks that are to enter lanes of their hosts
  local hosts_page

  local function wrong(what)
    found[what] = (found[what] or 0) + 1
    changed = changed or mends
    return mends
  end

  -- best: the state that loses nothing: work under way first, then what is or will be ready, and done last
  local function best(state, live)
    for letter in string.gmatch(live and 'ptwsfd' or 'twpsfd', '.') do
      if string.find(state, letter, 1, true) then return letter end
    end
  end

  -- take_out: remove an id from one state
  local function take_out(state, id)
    if state == 's' then return call('ZREM', key.scheduled, id) end
    if state == 'd' then
      done.undo({id})
      return done.undate({id})
    end
    call('SREM', ({p = key.in_progress, t = key.todos, w = key.waiting, f = key.failed})[state], id)
    if state == 'f' then kinds.leave({id}) end
  end

  -- adopt: a task in progress gets what its lease lacks: the time that its lock has left, and the lock's owner. Without
  -- a lock, it gets a lease that nobody owns, of a minute at most
  local function adopt(id, deadline, owner)
    local lock = leases.locks_of({id})[1]
    local left, token = call('PTTL', lock), try('GET', lock)
    if not deadline then
      deadline = now + (left > 0 and left or math.min(number(setting.lease_ms, 30000), 60000))
      call('ZADD', key.leases, deadline, id)
      count_up(key.stats, 'adopted', 1)
      wake.rouse(deadline)
    end
    if not owner then call('HSET', key.owners, id, type(token) == 'string' and token or '?') end
  end

  -- settle_turn: make sure that a task waits in the lane of its host, or has a place of the host
  local function settle_turn(id, state, name, in_lane)
    if state == 'w' and not waiting then
      if not in_lane then wrong('unserved') end
    elseif state == 'w' and not in_lane then
      local turn_at = name and call('ZSCORE', key.hosts, name)
      if not (turn_at and call('ZSCORE', hosts.lane(name), id)) or hosts.late(name, turn_at) then
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
    elseif placed and name and state == 't' then
      local one = hosts.get(name)
      if hosts.crowded(one) and not one.recall and wrong('placeless') then hosts.recall(one) end
    end
  end

  -- settle: each id is in one state, and its lease, place and lane agree with it. `lane` is the host in whose lane the
  -- ids were found, and `missing` the state to which an id in no state comes back
  local function settle(ids, lane, scores, missing)
    local states, deadlines, owners = find.everywhere(ids)
    local names = ready.hosts_of(ids)
    waits, wait_names = {}, {}
    if waiting then hosts.load(names) end
    for i = 1, #ids do
      local id, state, deadline, name = ids[i], states[i], moment(deadlines[i]), names[i]
      if #state > 1 then
        state = best(state, deadline and deadline > now)
        for other in string.gmatch(wrong('twice') and states[i] or '', '.') do
          if other ~= state then take_out(other, id) end
        end
      elseif state == '' and missing then
        if wrong('astray') then call('SADD', missing, id) end
        state = missing == key.in_progress and 'p' or missing == key.todos and 't' or 'w'
      end
      if state == 'p' and not (deadline and owners[i]) then
        if wrong('unleased') then adopt(id, deadline, owners[i]) end
      elseif state ~= 'p' and (deadlines[i] or owners[i]) and wrong('stale') then
        leases.drop({id})
      end
      if state == 's' and scores and not moment(scores[i]) then wrong('undue') end
      if lane and waiting and (state ~= 'w' or name ~= lane) and wrong('stale') then call('ZREM', hosts.lane(lane), id) end
      settle_turn(id, state, name, lane)
    end
    if #waits > 0 then ready.arrive(waits, wait_names) end
  end

  local function of_owners(ids)
    settle(ids, nil, nil, key.todos)
  end

  -- of_places: take away the places, members of `places`, of tasks that are neither ready nor in progress at this host
  local function of_places(words)
    if not waiting or #words == 0 then return end
    local ids, names = {}, {}
    for i = 1, #words do
      local size, rest = string.match(words[i], '^(%d+):(.*)$')
      names[i], ids[i] = string.sub(rest or '', 1, size or 0), string.sub(rest or words[i], (size or 0) + 1)
    end
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

  -- is_old: was a record of this task, which is in no state, seen a minute ago or before? 1 in `leftovers` stands for a
  -- task of which a record has been removed: there may be others
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
      local over = string.find(states[i], '[ptwsf]') or at <= now - 86400000 or at > now
      if mends and over then call('ZREM', key.leftovers, ids[i]) end
    end
  end

  -- records: only tasks in one of the states `kept_in` have records in this hash; those of others go
  local function records(ids, _, _, kept_in, forget, hash)
    local states, old = find.everywhere(ids), {}
    for i = 1, #ids do
      if not string.find(states[i], kept_in) and (kept_in == 'p' or states[i] ~= '' or not mends or is_old(ids[i])) then
        wrong('leftover')
        old[#old + 1] = ids[i]
      end
    end
    if not mends or #old == 0 then return end
    if forget then forget(old) else call('HDEL', hash, unpack(old)) end
  end

  -- of_members: these tasks have ended, and their batches count them
  local function of_members(ids)
    local kept = done.among(ids)
    for i = 1, #ids do results.tell_ended(batches.end_in({ids[i]}, kept[i] == 1)) end
  end

  -- of_batches: a batch that has been kept for its time goes
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
    local ticks = call('ZMSCORE', key.ticks, unpack(names))
    for i = 1, #names do
      local one = schedules.get(names[i])
      if not one or (one.state == 'r' and one.next > 0 and one.next or nil) ~= moment(ticks[i]) then wrong('tickless') end
    end
  end

  -- fields: some fields of a hash of long values, where to go on, and what values cost that are not left out
  local function fields(hash, at, count)
    local page = try('HSCAN', hash, at, 'COUNT', count, 'NOVALUES')
    if not page.err then return page[2], page[1], 0 end
    page = call('HSCAN', hash, at, 'COUNT', 8)
    local bytes = 0
    for i = 2, #page[2], 2 do bytes = bytes + #page[2][i] end
    return every_other(page[2]), page[1], math.floor(bytes / 4096)
  end

  -- lanes: a page of one host's lane; `at` is the cursor of the hosts, the cursor in the lane, and the host's name
  local function lanes(hosts_key, at, count)
    local from, inner, last = string.match(at, '^(%d+) (%d+) (.*)$')
    from, inner = from or at, inner or '0'
    if not hosts_page or hosts_page.from ~= from then
      local page = call('ZSCAN', hosts_key, from, 'COUNT', 50)
      hosts_page = {from = from, names = every_other(page[2]), next = page[1]}
      table.sort(hosts_page.names)
    end
    local names, i = hosts_page.names, 1
    while last and names[i] and (names[i] < last or names[i] == last and inner == '0') do i = i + 1 end
    local name = names[i]
    if not name then return {}, hosts_page.next end
    local lane = call('ZSCAN', hosts.lane(name), name == last and inner or '0', 'COUNT', count)
    local is_last = lane[1] == '0' and not names[i + 1]
    return every_other(lane[2]), is_last and hosts_page.next or from .. ' ' .. lane[1] .. ' ' .. name, name
  end

  -- page_of: read on in a stage: the next ids, where it goes on, the host of the lane, values or scores, and the cost
  local function page_of(how, from, at, count)
    if how == 'LANES' then return lanes(from, at, count) end
    if how == 'FIELDS' then
      local ids, on, cost = fields(from, at, count)
      return ids, on, nil, nil, cost
    end
    local page = call(how, from, at, 'COUNT', count)
    if how == 'SSCAN' then return page[2], page[1] end
    local values = {}
    for i = 2, #page[2], 2 do values[#values + 1] = page[2][i] end
    return every_other(page[2]), page[1], nil, values
  end

  -- stages: what the walk reads one after the other: how, which key, and what sees the ids there, with its options
  local function stages()
    local any = '[ptwsf]'
    return {
      {'SSCAN', key.in_progress, settle}, {'LANES', key.hosts, settle, key.waiting}, {'SSCAN', key.waiting, settle},
      {'SSCAN', key.todos, settle}, {'ZSCAN', key.scheduled, settle}, {'SSCAN', key.failed, settle},
      {'ZSCAN', key.leases, settle, key.in_progress}, {'HSCAN', key.owners, of_owners}, {'HSCAN', key.slots, of_slots},
      {'ZSCAN', key.places, of_places}, {'HSCAN', key.runtime, records, 'p'}, {'HSCAN', key.cancels, records, 'p'},
      {'FIELDS', key.rerun, records, 'p'}, {'FIELDS', key.progress, records, 'p'}, {'FIELDS', key.payload, records, any},
      {'HSCAN', key.groups, records, any}, {'HSCAN', key.priorities, records, compact and any or '[ptwsfd]'},
      {'HSCAN', key.awaited, records, '[ptws]'}, {'HSCAN', key.batch_of, records, '[ptws]', of_members},
      {'HSCAN', key.attempts, records, any, failures.clear}, {'HSCAN', key.crashes, records, any, failures.clear},
      {'FIELDS', key.errors, records, any, failures.clear}, {'HSCAN', key.releases, records, any, failures.clear},
      {'HSCAN', key.traces, records, any, failures.untrace}, {'HSCAN', key.batches, of_batches},
      {'FIELDS', key.schedules, of_schedules}, {'ZSCAN', key.leftovers, of_leftovers},
    }
  end

  verb('repair', {flags = {'allow-oom'}}, function()
    local n, cursor, shared, looked = tonumber(args[3]), args[4], args[4] == '+', 0
    found, mends, changed, hosts_page = {}, args[5] == '1', false, nil
    placed = call('HEXISTS', key.meta, 'converting') == 0
    if shared then cursor = call('HGET', key.meta, 'walk') or '' end
    local stage, at = string.match(cursor, '^(%d+) (.*)$')
    if not at or not string.find(at, '^%d+') then stage, at = 1, '0' end
    stage = tonumber(stage)
    local all = stages()
    while looked < n and stage <= #all do
      local how, set, see, which, forget = unpack(all[stage])
      local ids, lane, values, weight
      ids, at, lane, values, weight = page_of(how, set, at, n - looked)
      -- a look that finds nothing costs time, too; and each small lane costs as much as a few tasks
      looked = looked + math.max(1, #ids) + (how == 'LANES' and 3 or 0) + (weight or 0)
      if #ids > 0 then see(ids, lane, values, which, forget, set) end
      if at == '0' then stage = stage + 1 end
    end
    local on = stage <= #all and stage .. ' ' .. at or ''
    if waiting and changed then ready.turn() end
    if mends and setting.paused ~= '1' and call('EXISTS', key.todos) == 1 then wake.ring() end
    if shared and on ~= cursor then
      if on ~= '' then call('HSET', key.meta, 'walk', on) else call('HDEL', key.meta, 'walk') end
    end
    local reply = {on, looked}
    for what, count in pairs(found) do reply[#reply + 1], reply[#reply + 2] = what, count end
    return reply
  end)
end
