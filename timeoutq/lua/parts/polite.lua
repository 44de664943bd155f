-- polite: on a polite queue, ready tasks of a host wait in a set of its own until it is the host's turn
-- waiting   all that wait
-- host:NAME those of one host, by the time at which they became ready: who waits longest is next
-- hosts     when it is a host's turn; inf while it waits for no time: full, used up, banned, or nothing waits
-- slots     how many visits of a host have ended, a space, and what of it is in todos or in_progress: nothing, an id, or,
--           of several, NUL (length ':' id) *
-- resting   until when a host is not visited after its last visit
-- host_failures  how many of its visits have ended badly
-- policies  'delay per_host budget until flag reason', - for what the queue's own politeness says; flag b x or -
-- groups    the hosts of tasks that were put with one
-- A script says what arrives (enters the wait) and departs (leaves todos or in_progress), then calls turn() once.
local polite = settings[7]
local waiting, hosts_of, load_hosts, arrive, depart, abandon, enter, turn, regroup, ungroup, recall, block
local write_policy, host_row, holds, occupy, crowded, dissolve
if polite then
  local prefix = string.sub(meta, 1, -5)
  local hosts, slots, resting = prefix .. 'hosts', prefix .. 'slots', prefix .. 'resting'
  local groups, policies, lane = prefix .. 'groups', prefix .. 'policies', prefix .. 'host:'
  local host_failures = prefix .. 'host_failures'
  local call, find, sub, match, inf = redis.call, string.find, string.sub, string.match, math.huge
  local usual_delay, usual_per_host = match(polite, '^(%d+) (%d+)')
  usual_delay, usual_per_host = tonumber(usual_delay), tonumber(usual_per_host)
  local known, order = {}, {}
  waiting = prefix .. 'waiting'

  function hosts_of(ids, group)
    local names = {}
    if group and group ~= '' then
      for i = 1, #ids do names[i] = group end
      return names
    end
    local given = call('EXISTS', groups) == 1 and call('HMGET', groups, unpack(ids))
    for i = 1, #ids do names[i] = given and given[i] or host_of(ids[i]) end
    return names
  end

  -- regroup: keep the host that tasks were put with; ungroup: forget it
  function regroup(ids, group)
    if not group or group == '' then return end
    local pairs = {}
    for i = 1, #ids do pairs[2 * i - 1], pairs[2 * i] = ids[i], group end
    call('HSET', groups, unpack(pairs))
  end

  function ungroup(ids)
    if call('EXISTS', groups) == 1 then call('HDEL', groups, unpack(ids)) end
  end

  -- cut: a clock that stepped back, or a longer rule of before, would make the pause longer than anybody asks for now
  local function cut(one)
    local most = now + (one.delay or usual_delay)
    if one.next_ms and one.next_ms > most then one.next_ms, one.rested = most, true end
  end

  -- load_hosts: read what is kept of the hosts that this call has not met yet; gives all that it has met, by name
  function load_hosts(names)
    local fresh = {}
    for i = 1, #names do
      local name = names[i]
      if name and not known[name] then
        known[name] = true
        fresh[#fresh + 1] = name
      end
    end
    if #fresh == 0 then return known end
    local held = call('HMGET', slots, unpack(fresh))
    local rests = call('EXISTS', resting) == 1 and call('HMGET', resting, unpack(fresh))
    local rules = call('EXISTS', policies) == 1 and call('HMGET', policies, unpack(fresh))
    for i = 1, #fresh do
      local name = fresh[i]
      local one, text = {name = name, held = false, visits = 0}, held[i]
      if text then
        local gap = find(text, ' ', 1, true)
        one.visits = tonumber(sub(text, 1, gap - 1))
        if gap < #text then one.held = sub(text, gap + 1) end
      end
      if rules then
        one.until_ms, one.flag, one.reason = 0, '-', ''
        if rules[i] then
          local delay, per_host, budget, until_ms, flag, reason = match(rules[i], '^(%S+) (%S+) (%S+) (%S+) (%S) ?(.*)$')
          one.own_delay, one.own_per_host, one.budget = tonumber(delay), tonumber(per_host), tonumber(budget)
          one.delay, one.per_host = one.own_delay, one.own_per_host
          one.until_ms, one.flag, one.reason = tonumber(until_ms), flag, reason
        end
      end
      if rests and rests[i] then
        one.next_ms = tonumber(rests[i])
        cut(one)
      end
      known[name] = one
      order[#order + 1] = one
    end
    return known
  end

  -- places: the ids that `held` names; pack: the other way round
  local function places(held)
    if not held then return {} end
    if string.byte(held) ~= 0 then return {held} end
    local ids, at = {}, 2
    while at <= #held do
      local _, stop, size = find(held, '^(%d+):', at)
      ids[#ids + 1] = sub(held, stop + 1, stop + size)
      at = stop + size + 1
    end
    return ids
  end

  local function pack(ids)
    if #ids < 2 and (not ids[1] or string.byte(ids[1]) ~= 0) then return ids[1] or false end
    local words = {'\0'}
    for j = 1, #ids do words[j + 1] = #ids[j] .. ':' .. ids[j] end
    return table.concat(words)
  end

  -- vacate: one place less
  local function vacate(one, id)
    local held = one.held
    if held == id and string.byte(id) ~= 0 then
      one.held, one.moved = false, true
    elseif held then
      local ids, left = places(held), {}
      for j = 1, #ids do
        if ids[j] ~= id then left[#left + 1] = ids[j] end
      end
      if #left < #ids then one.held, one.moved = pack(left), true end
    end
  end

  -- holds: has this task a place of its host; occupy: it has one from now on
  function holds(name, id)
    local ids = places(known[name].held)
    for j = 1, #ids do
      if ids[j] == id then return true end
    end
    return false
  end

  local function take(one, id)
    if not one.held and string.byte(id) ~= 0 then
      one.held = id
    else
      local ids = places(one.held)
      ids[#ids + 1] = id
      one.held = pack(ids)
    end
    one.moved = true
  end

  function occupy(name, id)
    take(known[name], id)
  end

  -- crowded: a host has more than its rules allow, since they have changed
  function crowded(one)
    return #places(one.held) > (one.per_host or usual_per_host)
  end

  -- arrive: these are in `waiting` already
  function arrive(ids, names)
    load_hosts(names)
    local by_host, met = {}, {}
    for i = 1, #ids do
      local name = names[i]
      if name then
        local some = by_host[name]
        if some then
          some[#some + 1], some[#some + 2] = now, ids[i]
        else
          by_host[name] = {now, ids[i]}
          met[#met + 1] = name
        end
      end
    end
    for i = 1, #met do
      call('ZADD', lane .. met[i], 'NX', unpack(by_host[met[i]]))
    end
  end

  -- depart: a visit of these is over, or will not be made; `visited` and `broken` are what each counts for
  function depart(ids, names, visited, broken)
    load_hosts(names)
    for i = 1, #ids do
      local one = names[i] and known[names[i]]
      if one then
        one.full = one.full or one.held and (one.per_host or usual_per_host) == 1
        vacate(one, ids[i])
        if visited > 0 then one.visits, one.moved = one.visits + visited, true end
        if broken > 0 then call('HINCRBY', host_failures, one.name, broken) end
        local delay = one.delay or usual_delay
        if delay > 0 then one.next_ms, one.rested = now + delay, true end
      end
    end
  end

  -- recall: what no worker has claimed yet waits again
  function recall(one)
    local ids = places(one.held)
    for j = 1, #ids do
      if call('SMOVE', todos, waiting, ids[j]) == 1 then
        call('ZADD', lane .. one.name, now, ids[j])
        vacate(one, ids[j])
      end
    end
  end

  -- block: no more visits of a host before a time
  function block(name, until_ms, by)
    local one = load_hosts({name})[name]
    if one.flag ~= 'x' and until_ms > (one.until_ms or 0) then
      one.until_ms, one.flag, one.reason = until_ms, 'b', by
      recall(one)
      write_policy(one)
    end
  end

  -- abandon: one that waited is gone
  function abandon(id, name)
    if not name then return end
    call('ZREM', lane .. name, id)
    load_hosts({name})
  end

  -- dissolve: the queue is polite no more; nothing waits
  function dissolve()
    call('DEL', hosts, slots, resting, groups, host_failures, policies)
  end

  -- enter: new ids become ready, at once or when it is their host's turn; gives how many they are
  function enter(ids, group)
    local names, free, bound, bound_names = hosts_of(ids, group), {}, {}, {}
    local count = 0
    for i = 1, #ids do
      if names[i] then
        bound[#bound + 1], bound_names[#bound_names + 1] = ids[i], names[i]
      else
        free[#free + 1] = ids[i]
      end
    end
    if #free > 0 then
      count = call('SADD', todos, unpack(free))
      if call('SCARD', todos) == count then
        call('HSET', stats, 'todos_since', now)
      end
      ring()
    end
    if #bound > 0 then
      count = count + call('SADD', waiting, unpack(bound))
      regroup(bound, group)
      arrive(bound, bound_names)
    end
    turn()
    return count
  end

  local function refuse(one)
    local ids = call('ZPOPMIN', lane .. one.name, 500)
    for i = 1, #ids, 2 do
      if call('SMOVE', waiting, prefix .. 'failed', ids[i]) == 1 then
        log_error(ids[i], 'gave up: host ' .. one.name .. ' is banned: ' .. one.reason)
        call('HINCRBY', stats, 'gave_up', 1)
      end
    end
    return #ids == 1000 and now or inf, #ids / 2
  end

  -- hand_over: give a host's tasks the places that are free; `out` collects them, so that all go at once, as from scheduled
  local function hand_over(one, free, out)
    local ids = call('ZPOPMIN', lane .. one.name, free)
    for j = 1, #ids, 2 do
      take(one, ids[j])
      out[#out + 1] = ids[j]
    end
    return #ids / 2
  end

  -- turn: hand over what each host that was loaded may have, say when it is its turn again, and write all down; gives how
  -- many tasks have moved
  function turn()
    local scores, held, rests, out, refused, soonest = {}, {}, {}, {}, 0, inf
    for i = 1, #order do
      local one = order[i]
      local busy = one.held and #places(one.held) or 0
      local free, at, score = (one.per_host or usual_per_host) - busy, one.next_ms or 0, inf
      if one.until_ms and one.until_ms > at then at = one.until_ms end
      if one.budget then
        free = math.min(free, one.budget - one.visits - busy)
      end
      if one.flag == 'x' then
        local count
        score, count = refuse(one)
        refused = refused + count
      elseif free > 0 then
        if at <= now then
          free = free - hand_over(one, free, out)
        elseif call('EXISTS', lane .. one.name) == 1 then
          score = at
        end
      end
      if score < soonest then soonest = score end
      -- it was full and is full again: that it waits for no time is written down already
      if not (one.full and free == 0) then
        scores[#scores + 1] = score == inf and '+inf' or score
        scores[#scores + 1] = one.name
      end
      one.full = nil
      if one.moved then
        held[#held + 1] = one.name
        held[#held + 1] = one.visits .. ' ' .. (one.held or '')
        one.moved = nil
      end
      if one.rested then
        rests[#rests + 1] = one.name
        rests[#rests + 1] = one.next_ms
        one.rested = nil
      end
    end
    if #held > 0 then call('HSET', slots, unpack(held)) end
    if #rests > 0 then call('HSET', resting, unpack(rests)) end
    if #scores > 0 then call('ZADD', hosts, unpack(scores)) end
    if soonest < inf then rouse(soonest) end
    for at = 1, #out, 1000 do
      local some = {unpack(out, at, math.min(at + 999, #out))}
      call('SREM', waiting, unpack(some))
      call('SADD', todos, unpack(some))
    end
    if #out > 0 then
      if call('SCARD', todos) == #out then
        call('HSET', stats, 'todos_since', now)
      end
      ring()
    end
    return #out + refused
  end

  -- write_policy: keep the rules of a host
  function write_policy(one)
    one.delay, one.per_host = one.own_delay, one.own_per_host
    cut(one)
    local text = table.concat({one.own_delay or '-', one.own_per_host or '-', one.budget or '-',
      string.format('%.0f', one.until_ms or 0), one.flag or '-', one.reason or ''}, ' ')
    if text == '- - - 0 - ' then
      call('HDEL', policies, one.name)
    else
      call('HSET', policies, one.name, text)
    end
  end

  -- host_row: what is known of a loaded host, for people
  function host_row(name)
    local one = known[name]
    return {name, call('ZCARD', lane .. name), places(one.held), call('ZSCORE', hosts, name),
      one.delay or usual_delay, one.per_host or usual_per_host, one.budget or -1, one.visits, tonumber(call('HGET', host_failures, name) or 0),
      string.format('%.0f', one.next_ms or 0), string.format('%.0f', one.until_ms or 0), one.flag or '-', one.reason or ''}
  end
end
