-- hosts: on a polite queue, the ready tasks of a host wait in the host's own set (its lane) until it is the host's
-- turn. These functions are `ready` then (see ready.lua)
-- waiting   all tasks that wait
-- host:NAME the lane: the waiting tasks of one host, by the time at which they became ready, less what `priority` says;
--           the lowest score is next
-- hosts     when each host has its turn; inf for a host that waits for no time: full, used up, banned, or nothing waits
-- slots     of each host: how many visits have ended, a space, and its tasks in todos or in_progress: nothing, one id,
--           or NUL when `places` has them; after the NUL, while a recall is under way, 'r' and the last id that the
--           recall looked at
-- places    the tasks in todos or in_progress of hosts that may have several: length ':' name id, so a host's tasks are
--           neighbours
-- resting   until when a host is not visited, after its last visit; in the field '' when politeness began, or the delay
--           of all hosts was raised, if visits had ended before: nobody knows when
-- host_failures  how many of a host's visits have failed
-- policies  'delay per_host budget until flag reason'; - stands for the queue's own politeness; flag: b blocked, x
--           banned, or -
-- groups    the hosts of tasks that were put with group=, and of URLs whose host is not plain ASCII, for which clients
--           send it
-- Turns, recalls and bans move at most `left` tasks between the states in one call, so that no call holds up the
-- server. A host with more tasks to move has its turn at once, and the next call goes on.
-- While a host rests, none of its tasks is in todos: so what of it is ready when a visit ends waits again. All of this
-- is one step, for with a delay a host has no more than `most_resting` places
do
  local last_ms = 253402300799000 -- the end of the year 9999, the last that a client can show
  local most_resting = 500
  local usual_delay, usual_per_host -- ms, and how many visits at a time
  local known, order, left -- the hosts that this call has met, by name and in order; how many tasks it may move still

  -- rule: the number that a word says; nil for one that no client writes, which counts as absent
  local function rule(word, least, most)
    local found = tonumber(word)
    return found and found >= least and found <= (most or 9007199254740992) and found or nil
  end

  function hosts.begin()
    polite, ready, waiting = true, hosts, key.waiting
    known, order, left = {}, {}, 500
    rules = setting.politeness or ''
    local delay, per_host, off = string.match(rules, '^(%d+) (%d+)(.*)$')
    usual_delay, usual_per_host = rule(delay, 0, last_ms), rule(per_host, 1)
    -- a politeness that cannot be read, or lets nobody visit, counts as the usual one, so no host is hurt
    if not (usual_delay and usual_per_host and (off == '' or off == ' off')) then
      rules, usual_delay, usual_per_host = '1000 1', 1000, 1
    end
  end

  -- ends: is the queue about to be polite no longer?
  function hosts.ends()
    return polite and string.sub(rules, -3) == 'off'
  end

  function hosts.lane(name)
    return named('host:' .. name)
  end

  local function has_lane(one)
    return call('EXISTS', hosts.lane(one.name)) == 1
  end

  function hosts.hosts_of(ids, group)
    local names, same = {}, group and group ~= ''
    local given = not same and call('EXISTS', key.groups) == 1 and call('HMGET', key.groups, unpack(ids))
    for i = 1, #ids do names[i] = same and group or given and given[i] or hosts.name_of(ids[i]) end
    return names
  end

  -- cut: shorten a pause that is longer than the delay: the clock stepped back, or the delay was longer
  local function cut(one)
    local most = now + (one.delay or usual_delay)
    if one.next_ms and one.next_ms > most then one.next_ms, one.rested = most, true end
  end

  -- many_of: prepare a host with several places: what stands before its ids in `places`, and the end of its range
  local function many_of(one)
    local begins = #one.name .. ':' .. one.name
    local cut = #begins
    while string.byte(begins, cut) == 255 do cut = cut - 1 end
    one.key, one.last = begins, '(' .. string.sub(begins, 1, cut - 1) .. string.char(string.byte(begins, cut) + 1)
  end

  -- read_slot: what a host's field in `slots` says
  local function read_slot(one, text)
    local visits, at = string.match(text, '^(%d+) ()')
    -- from a record that cannot be read, only what `places` holds is known
    if not visits then visits, at, text, one.moved = 0, 3, '0 \0', true end
    one.visits = number(visits)
    local begins = string.byte(text, at)
    if begins == 0 then
      many_of(one)
      one.many = call('ZLEXCOUNT', key.places, '[' .. one.key, one.last)
      if one.many == 0 then
        one.many, one.moved = nil, true
      elseif #text > at then
        one.recall = string.sub(text, at + 2)
      end
    elseif begins then
      one.held = string.sub(text, at)
    end
  end

  -- read_policy: what a host's field in `policies` says; the words - are none
  local function read_policy(one, text)
    local delay, per_host, budget, until_ms, flag, reason = string.match(text, '^(%S+) (%S+) (%S+) (%S+) (%S) ?(.*)$')
    one.own_delay, one.own_per_host, one.budget = rule(delay, 0, last_ms), rule(per_host, 1), rule(budget, 0)
    one.delay, one.per_host = one.own_delay, one.own_per_host
    if flag == 'b' or flag == 'x' then one.until_ms, one.flag, one.reason = rule(until_ms, 0, last_ms) or 0, flag, reason end
  end

  -- load: read the records of hosts that this call has not read yet; gives all hosts that it has read, by name
  function hosts.load(names)
    local fresh, count, met = {}, 0, #order
    for i = 1, #names do
      local name = names[i]
      if name and not known[name] then
        count = count + 1
        known[name], fresh[count] = true, name
      end
    end
    if count == 0 then return known end
    local held = call('HMGET', key.slots, unpack(fresh))
    local rests = call('EXISTS', key.resting) == 1 and call('HMGET', key.resting, '', unpack(fresh))
    local began = rests and number(rests[1])
    local own = call('EXISTS', key.policies) == 1 and call('HMGET', key.policies, unpack(fresh))
    for i = 1, count do
      local name = fresh[i]
      -- with all fields that a usual visit sets: a field that comes later makes the server build the table anew
      local one = {name = name, held = false, visits = 0, moved = false, full = false}
      if held[i] then read_slot(one, held[i]) end
      if own then one.until_ms, one.flag, one.reason = 0, '-', '' end
      if own and own[i] then read_policy(one, own[i]) end
      if rests then
        one.next_ms = number(rests[i + 1])
        local least = began and began + (one.delay or usual_delay)
        if least and not (one.next_ms and (one.own_delay or one.next_ms > least)) then one.next_ms = least end
        cut(one)
      end
      known[name], order[met + i] = one, one
    end
    return known
  end

  function hosts.get(name)
    return hosts.load({name})[name]
  end

  -- busy: how many places of a host are taken
  local function busy(one)
    return one.many or one.held and 1 or 0
  end

  -- most: how many places a host has
  local function most(one)
    local count = one.per_host or usual_per_host
    if count > most_resting and (one.delay or usual_delay) > 0 then return most_resting end
    return count
  end

  -- holds: has this task a place of its host?
  function hosts.holds(name, id)
    local one = known[name]
    return one.held == id or one.many and call('ZSCORE', key.places, one.key .. id) and true or false
  end

  -- take: these tasks have places. A host's only task needs no entry in `places`, only its id in `slots`
  local function take(one, ids)
    if #ids == 1 and busy(one) == 0 and string.byte(ids[1]) ~= 0 then
      one.held, one.moved = ids[1], true
      return
    end
    if not one.many then
      many_of(one)
      one.many, one.moved = 0, true
      if one.held then
        one.many = call('ZADD', key.places, 0, one.key .. one.held)
        one.held = false
      end
    end
    local words = {}
    for j = 1, #ids do words[2 * j - 1], words[2 * j] = 0, one.key .. ids[j] end
    one.many = one.many + call('ZADD', key.places, unpack(words))
  end

  function hosts.occupy(name, id)
    take(known[name], {id})
  end

  -- leave: these tasks give up their places; only for a host with several places
  local function leave(one, ids)
    local words = {}
    for j = 1, #ids do words[j] = one.key .. ids[j] end
    one.many = one.many - call('ZREM', key.places, unpack(words))
    if one.many == 0 then one.many, one.recall, one.moved = nil, nil, true end
  end

  -- crowded: a host has more tasks ready or in progress than its rules, which have changed, allow
  function hosts.crowded(one)
    return busy(one) > most(one)
  end

  -- late: is the turn of a host later than its rules say? Not while the rules of all hosts change
  function hosts.late(name, turn_at)
    local one, at = known[name], moment(turn_at) or math.huge
    if at <= now or call('HEXISTS', key.meta, 'converting') == 1 then return false end
    if one.recall or one.flag == 'x' then return true end
    local taken = busy(one)
    if most(one) <= taken or one.budget and one.budget - one.visits <= taken then return false end
    return at > math.max(one.next_ms or 0, one.until_ms or 0)
  end

  function hosts.entry(name)
    return name and waiting or key.todos
  end

  -- arrive: enter tasks that are in `waiting` already into the lanes of their hosts
  function hosts.arrive(ids, names)
    hosts.load(names)
    local by_host, met, free, ahead = {}, {}, false, priority.ahead_of(ids)
    for i = 1, #ids do
      local name = names[i]
      if name then
        local some_of, at = by_host[name], ahead[i] == 0 and now or whole(now - ahead[i])
        if some_of then
          some_of[#some_of + 1], some_of[#some_of + 2] = at, ids[i]
        else
          by_host[name] = {at, ids[i]}
          met[#met + 1] = name
        end
      else
        free = true
      end
    end
    if free then wake.ring() end
    for i = 1, #met do call('ZADD', hosts.lane(met[i]), 'NX', unpack(by_host[met[i]])) end
  end

  -- recall: a host's ready tasks wait again, first of their priority; with several places, turn() does so in steps
  function hosts.recall(one)
    if one.many then
      one.recall, one.moved = '', true
    elseif one.held and call('SMOVE', key.todos, waiting, one.held) == 1 then
      call('ZADD', hosts.lane(one.name), whole(1 - priority.ahead_of({one.held})[1]), one.held)
      one.held, one.moved = false, true
    end
  end

  -- rest_until: a visit of this host is over: the host rests. A host that rests already has no ready tasks
  function hosts.rest_until(one, at)
    if (one.next_ms or 0) <= now then hosts.recall(one) end
    one.next_ms, one.rested = at, true
  end

  local function pause(one)
    local delay = one.delay or usual_delay
    if delay > 0 then hosts.rest_until(one, now + delay) end
  end

  -- rest: a host with one place, or without a delay, needs no such care
  function hosts.rest(ids, which)
    if (usual_per_host == 1 or usual_delay == 0) and call('EXISTS', key.policies) == 0 then return end
    local names = ready.hosts_of(ids)
    for i = 1, #ids do names[i] = which[i] and names[i] end
    hosts.load(names)
    for i = 1, #ids do
      if names[i] then pause(known[names[i]]) end
    end
  end

  function hosts.depart(ids, names, visited, broken)
    hosts.load(names)
    local crowds = {}
    for i = 1, #ids do
      local one = names[i] and known[names[i]]
      if one then
        if one.many then
          if not one.leaving then
            one.leaving = {}
            crowds[#crowds + 1] = one
          end
          one.leaving[#one.leaving + 1] = ids[i]
        elseif one.held then
          one.full = one.full or (one.per_host or usual_per_host) == 1
          if one.held == ids[i] then one.held, one.moved = false, true end
        end
        if visited > 0 then one.visits, one.moved = one.visits + visited, true end
        if one.visits == 0 then one.next_ms, one.rested = one.next_ms or now, true end -- for a delay that is raised
        if broken > 0 then count_up(key.host_failures, one.name, broken) end
        pause(one)
      end
    end
    for _, one in ipairs(crowds) do
      leave(one, one.leaving)
      one.leaving = nil
    end
  end

  -- go_on: do one step of a recall, in the order of the ids
  local function go_on(one)
    if left == 0 then return end
    local from = one.recall == '' and '[' .. one.key or '(' .. one.key .. one.recall
    local ids, rows = call('ZRANGEBYLEX', key.places, from, one.last, 'LIMIT', 0, left), {}
    for j = 1, #ids do ids[j] = string.sub(ids[j], #one.key + 1) end
    one.recall, one.moved = #ids == left and ids[#ids] or nil, true
    left = left - #ids
    if #ids == 0 then return end
    local is_ready, ahead = call('SMISMEMBER', key.todos, unpack(ids)), priority.ahead_of(ids)
    for j = 1, #ids do
      is_ready[j] = is_ready[j] == 1
      if is_ready[j] then rows[#rows + 1], rows[#rows + 2] = whole(1 - ahead[j]), ids[j] end
    end
    local back = chosen(ids, is_ready)
    if #back == 0 then return end
    call('SADD', waiting, unpack(back))
    call('ZADD', hosts.lane(one.name), unpack(rows))
    call('SREM', key.todos, unpack(back))
    leave(one, back)
  end

  function hosts.block(name, until_ms, by)
    local one = hosts.get(name)
    if one.flag ~= 'x' and until_ms > (one.until_ms or 0) then
      one.until_ms, one.flag, one.reason = until_ms, 'b', by
      hosts.recall(one)
      hosts.write_policy(one)
    end
  end

  -- abandon: remove a waiting task from its host's lane
  function hosts.abandon(id, name)
    if not name then return end
    call('ZREM', hosts.lane(name), id)
    hosts.load({name})
  end

  -- withdraw: waiting tasks leave their lanes, the others their places
  function hosts.withdraw(ids, where)
    local names, away, away_names = ready.hosts_of(ids), {}, {}
    call('SREM', waiting, unpack(ids))
    for i = 1, #ids do
      if where[i] == 't' or where[i] == 'p' then
        away[#away + 1], away_names[#away + 1] = ids[i], names[i]
      elseif where[i] == 'w' then
        hosts.abandon(ids[i], names[i])
      end
    end
    ready.depart(away, away_names, 0, 0)
    ready.turn()
  end

  function hosts.enter(ids, group)
    local names, free, bound, bound_names, count = ready.hosts_of(ids, group), {}, {}, {}, 0
    for i = 1, #ids do
      if names[i] then
        bound[#bound + 1], bound_names[#bound_names + 1] = ids[i], names[i]
      else
        free[#free + 1] = ids[i]
      end
    end
    if #free > 0 then count = plain.enter(free) end
    if #bound > 0 then
      groups.keep(bound, group)
      count = count + call('SADD', waiting, unpack(bound))
      ready.arrive(bound, bound_names)
    end
    ready.turn()
    return count
  end

  -- more: the next turn of a host when this call may move no more tasks: now, if the host has more
  local function more(one)
    return has_lane(one) and now or math.huge
  end

  -- refuse: tasks of a banned host go to failed; the log of errors has the ban alone
  local function refuse(one)
    local ids, moved = left > 0 and every_other(call('ZPOPMIN', hosts.lane(one.name), left)) or {}, {}
    left = left - #ids
    for _, id in ipairs(ids) do
      if call('SMOVE', waiting, key.failed, id) == 1 then
        failures.keep(id, 'gave up: host ' .. one.name .. ' is banned: ' .. one.reason)
        moved[#moved + 1] = id
      end
    end
    failures.spent(moved)
    return left == 0 and more(one) or math.huge
  end

  -- hand_over: give free places of a host to waiting tasks; `out` collects them, so that all move in one step
  local function hand_over(one, free, out)
    local popped = every_other(call('ZPOPMIN', hosts.lane(one.name), free))
    for j = 1, #popped do out[#out + 1] = popped[j] end
    left = left - #popped
    if #popped > 0 then take(one, popped) end
    return #popped
  end

  -- enter: these tasks have left their lanes and are ready; they are in `waiting` still
  local function enter(ids)
    if #ids == 0 then return end
    call('SADD', key.todos, unpack(ids))
    call('SREM', waiting, unpack(ids))
    plain.note_first(#ids)
    wake.ring()
  end

  -- serve: hand over what a host may have; gives its next turn, and how many places are free still
  local function serve(one, out)
    if one.recall then go_on(one) end
    local taken = busy(one)
    local free, at = most(one) - taken, math.max(one.next_ms or 0, one.until_ms or 0)
    if one.budget then free = math.min(free, one.budget - one.visits - taken) end
    if one.recall then return now, free end
    if one.flag == 'x' then return refuse(one), free end
    if free > 0 and at > now then return has_lane(one) and at or math.huge, free end
    if free > 0 and left > 0 then free = free - hand_over(one, math.min(free, left), out) end
    return free > 0 and left == 0 and more(one) or math.huge, free
  end

  -- turn: serve all loaded hosts and write their records; gives how many tasks have moved, and whether more are to
  function hosts.turn()
    local scores, held, rests, out, soonest, before, count = {}, {}, {}, {}, math.huge, left, 0
    for i = 1, #order do
      local one = order[i]
      local score, free = serve(one, out)
      if score < soonest then soonest = score end
      -- a host that was full and is full again: `hosts` says already that it waits for no time
      if not (one.full and free == 0) then
        scores[#scores + 1], scores[#scores + 2] = score == math.huge and '+inf' or score, one.name
      end
      if one.moved then
        held[count + 1] = one.name
        count = count + 2
        held[count] = one.visits .. ' ' .. (one.many and (one.recall and '\0r' .. one.recall or '\0') or one.held or '')
      end
      if one.rested then rests[#rests + 1], rests[#rests + 2] = one.name, one.next_ms end
      one.full, one.moved, one.rested = false, false, nil
    end
    some('HSET', key.slots, held)
    some('HSET', key.resting, rests)
    some('ZADD', key.hosts, scores)
    if soonest < math.huge then wake.rouse(soonest) end
    enter(out)
    return before - left, soonest <= now
  end

  -- pass_on_usual: pass_on() in half the time, for tasks with the only place of a host without rules of its own.
  -- Gives the tasks that are left, and their hosts
  local function pass_on_usual(ids, names, visited)
    local asked, begins, left_ids, left_names, odd, odd_names = {}, {}, {}, {}, {}, {}
    local words, rests, scores, out, waits = {}, {}, {}, {}, false
    for i = 1, #ids do asked[i] = names[i] or '' end
    local held = call('HMGET', key.slots, unpack(asked))
    local rested = usual_delay == 0 and call('EXISTS', key.resting) == 1 and call('HMGET', key.resting, unpack(asked))
    local own = call('EXISTS', key.policies) == 1 and call('HMGET', key.policies, unpack(asked))
    local again = whole(now + usual_delay)
    for i = 1, #ids do
      local id, name, text = ids[i], names[i], held[i]
      local visits, at = string.match(text or '', '^(%d+) ()')
      if visits and string.sub(text, at) == id and string.byte(id) ~= 0 and not (known[name] or own and own[i] or rested and rested[i]) then
        -- to write a number as text takes longer than to find the text that another host of this call needed
        begins[visits] = begins[visits] or visits + visited .. ' '
        local first
        if usual_delay == 0 then
          first = call('ZPOPMIN', hosts.lane(name))[1]
          out[#out + 1] = first
          if not first then
            scores[#scores + 1], scores[#scores + 2] = '+inf', name
          elseif string.byte(first) == 0 then
            odd[#odd + 1], odd_names[#odd + 1], first = first, name, nil
          end
        else
          local more = call('EXISTS', hosts.lane(name)) == 1
          waits = waits or more
          rests[#rests + 1], rests[#rests + 2] = name, again
          scores[#scores + 1], scores[#scores + 2] = more and again or '+inf', name
        end
        words[#words + 1], words[#words + 2] = name, begins[visits] .. (first or '')
      else
        left_ids[#left_ids + 1], left_names[#left_ids + 1] = id, name
      end
    end
    left = left - #out
    some('HSET', key.slots, words)
    some('HSET', key.resting, rests)
    some('ZADD', key.hosts, scores)
    if waits then wake.rouse(now + usual_delay) end
    enter(out)
    hosts.load(odd_names)
    for i = 1, #odd do hosts.occupy(odd_names[i], odd[i]) end
    return left_ids, left_names
  end

  function hosts.pass_on(ids, visited)
    local names = ready.hosts_of(ids)
    if usual_per_host == 1 and left >= #ids then ids, names = pass_on_usual(ids, names, visited) end
    if #ids > 0 then ready.depart(ids, names, visited, 0) end
    if #order > 0 then ready.turn() end
  end

  -- write_policy: keep the rules of a host
  function hosts.write_policy(one)
    local before = one.delay or usual_delay
    one.delay, one.per_host, one.until_ms = one.own_delay, one.own_per_host, math.min(one.until_ms or 0, last_ms)
    local delay = one.delay or usual_delay
    -- a pause under way follows a delay that is raised; where there was none, nobody knows when the last visit ended
    if delay > before and (one.visits > 0 or call('HEXISTS', key.resting, one.name) == 1) then
      one.next_ms, one.rested = (before > 0 and one.next_ms or now + before) + delay - before, true
    end
    cut(one)
    local text = table.concat({one.own_delay or '-', one.own_per_host or '-', one.budget or '-', whole(one.until_ms), one.flag or '-',
      one.reason or ''}, ' ')
    if text == '- - - 0 - ' then
      call('HDEL', key.policies, one.name)
    else
      call('HSET', key.policies, one.name, text)
    end
  end

  -- row: what is known of a loaded host, for people, with the first twenty of its tasks in flight
  function hosts.row(name)
    local one = known[name]
    local ids, lane = {one.held or nil}, hosts.lane(name)
    if one.many then
      ids = call('ZRANGEBYLEX', key.places, '[' .. one.key, one.last, 'LIMIT', 0, 20)
      for j = 1, #ids do ids[j] = string.sub(ids[j], #one.key + 1) end
    end
    local next_id = call('ZRANGE', lane, 0, 0)[1]
    return {name, call('ZCARD', lane), ids, call('ZSCORE', key.hosts, name),
      one.delay or usual_delay, most(one), one.budget or -1, one.visits, number(call('HGET', key.host_failures, name), 0),
      whole(math.min(one.next_ms or 0, last_ms)), whole(one.until_ms or 0), one.flag or '-', one.reason or '',
      busy(one), one.recall and 1 or 0, next_id or false,
      next_id and has('priority') and call('HGET', key.priorities, next_id) or false}
  end

  -- next_turn: when the next host has its turn, ms; nil while none waits for a time
  function hosts.next_turn()
    if not uses then return nil end
    return moment(call('ZRANGEBYSCORE', key.hosts, '-inf', '(+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
  end
end
