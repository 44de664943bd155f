-- claim: lease ready tasks to a token. Sent again with the same token, it gives the leases that the first call took.
-- ARGS  1 token   2 age of the call, ms   3 how many, number   4 timeout, ms
--       5 not after, ms: server time past which the client has given up; 0 for never   6.. sections
-- SECTIONS  max_runtime=ms for which the leases may be held in all   share=1 how many workers there are; no worker
--       takes more than its part of a short queue   from=1 where a call that was sent again goes on to look for its
--       leases, as its part before replied
-- Reply {now ms, deadline ms, first fence number, {id *}, {failures? *}?, {crashes? *}?, {payload? *}?, [from]}: the
--       last three are nil where no task has any
-- Reply {now ms, next event ms, paused 0 or 1, [from]}: there is nothing to lease
-- from: where to go on, when the call was sent again and has looked through only a part of the leases
do
  -- taken_before: the leases that a call took which is sent again; `rest` is where the next call goes on, or
  -- nil. Also gives whether an earlier part has found some
  local function taken_before(token, age, lease_ms, place)
    local took, from, last = string.match(place or '', '^(%d) (%S+) (.*)$')
    if age == 0 and not from then return none end
    -- those after the last lease of the part before; if that lease has moved, those from its former deadline on. This
    -- call may have been on its way for five seconds more than the one that took them
    local first, ids
    local newest = now + lease_ms + 1 -- a claim over HTTP that was sent again in this ms has extended them until then
    if from and call('ZSCORE', key.leases, last) == from then
      local rank = call('ZRANK', key.leases, last) + 1
      first = call('ZRANGE', key.leases, rank, rank + 9999)
    else
      first = call('ZRANGEBYSCORE', key.leases, from or now - age - 5000 + lease_ms, newest, 'LIMIT', 0, 10000)
    end
    ids = {}
    for at = 1, #first, 500 do
      local chunk = {unpack(first, at, math.min(at + 499, #first))}
      local held = call('HMGET', key.owners, unpack(chunk))
      for i = 1, #chunk do
        if held[i] == token then ids[#ids + 1] = chunk[i] end
      end
    end
    if #first < 10000 then return ids, nil, took == '1' end
    local score = call('ZSCORE', key.leases, first[10000])
    if moment(score) > newest then return ids, nil, took == '1' end
    return ids, ((took == '1' or #ids > 0) and '1 ' or '0 ') .. score .. ' ' .. first[10000], took == '1'
  end

  -- unsuspected: a task that lost two leases is handed out alone
  local function unsuspected(picks)
    if #picks == 0 or call('EXISTS', key.crashes) == 0 then return picks end
    local counts, others = call('HMGET', key.crashes, unpack(picks)), {}
    for i = 1, #picks do
      if number(counts[i], 0) < 2 then
        others[#others + 1] = picks[i]
      elseif i == 1 then
        return {picks[1]}
      end
    end
    return others
  end

  -- take: lease these ready tasks; those that are not ready any more leave the list
  local function take(ids, token, lease_ms, runtime_ms)
    local count, most, span, ends = 0, #ids, lease_ms, now + lease_ms
    -- as text: a server writes out a number anew each time that it is passed on, and Redis is slow at this
    if most > 4 then span, ends = whole(span), whole(ends) end
    for i = 1, most do
      if quiet('SMOVE', key.todos, key.in_progress, ids[i]) == 1 then
        count = count + 1
        ids[count] = ids[i]
      end
    end
    for i = most, count + 1, -1 do ids[i] = nil end
    if count == 0 then return end
    leases.lock(ids, token, span)
    call('ZADD', key.leases, unpack(alike(ids, ends)))
    call('HSET', key.owners, unpack(alike(ids, token, true)))
    if runtime_ms > 0 then
      settings.use('runtime', true)
      call('HSET', key.runtime, unpack(alike(ids, now + runtime_ms, true)))
    end
    count_up(key.stats, 'claimed', count)
    if logging then events.moved(ids, key.todos, key.in_progress) end
    wake.rouse(now + lease_ms)
  end

  -- fields: what a hash says of each of these tasks; false if there is no such hash
  local function fields(name, ids)
    return (#ids < 4 or call('EXISTS', name) == 1) and call('HMGET', name, unpack(ids))
  end

  -- nothing: the reply of a claim that leases nothing: when something is to be done next
  local function nothing(paused, lease_ms)
    local lease, due, turn = wake.first(key.leases), wake.first(key.scheduled), hosts.next_turn()
    local at = math.min(lease or math.huge, due or math.huge, turn or math.huge)
    if lease and leases.too_long(number(setting.lease_ms, lease_ms)) then at = now end
    return {now, at < math.huge and at or 0, paused and 1 or 0}
  end

  verb('claim', {flags = {'allow-oom'}, reads = {'schema', 'uses', 'paused', 'lease_ms', 'wake_at', 'fence', 'run_id'}}, function()
    local token, age, n, paused = args[1], tonumber(args[2]), tonumber(args[3]), setting.paused == '1'
    local lease_ms, not_after = tonumber(args[4]), tonumber(args[5])
    local given, refused = sections(6, ' max_runtime=ms share=1 from=1')
    if refused then return refused end
    if not_after > 0 and now > not_after then
      return {err = 'LATE the claim arrived ' .. (now - not_after) .. ' ms after its caller gave up'}
    end
    local runtime_ms = tonumber(given.max_runtime or 0)
    if runtime_ms > 0 then lease_ms = math.min(lease_ms, runtime_ms) end
    local deadline, recorded, bodies = now + lease_ms, true, nil
    local ids, rest, took = taken_before(token, age, lease_ms, given.from)
    if #ids > 0 then
      deadline = moment(call('ZSCORE', key.leases, ids[1])) or deadline -- they run since the first call
    elseif rest or took then
      return {now, 0, paused and 1 or 0, rest}
    elseif not paused then
      -- a name that is given four times counts four times
      local there = call('EXISTS', key.payload, key.attempts, key.crashes, key.bell, key.bell, key.bell, key.bell)
      recorded = there % 4 > 0
      -- who takes one task need not know how many there are, unless the bell is to ring for the others
      local ready_count = (n ~= 1 or there < 4) and call('SCARD', key.todos) or 1
      -- who asks for 0 tasks has hung up behind a bell, maybe: a server that gets a put and the end of a connection at
      -- once spends the stroke on that connection, and does not run the claim behind it. A Redis that is full rings no
      -- bell
      if n == 0 and ready_count > 0 then pcall(wake.ring) end
      n = math.min(n, math.max(1, math.ceil(ready_count / tonumber(given.share or 1))))
      ids = n > 0 and ready_count > 0 and tasks.pick(n, ready_count) or {}
      if recorded then ids, bodies = tasks.fit(unsuspected(ids)) end
      local picked = #ids
      take(ids, token, lease_ms, runtime_ms)
      if #ids < picked then bodies = nil end -- each payload stands at the place of its task
      if #ids > 0 and ready_count > #ids and there < 4 then wake.ring(true) end
    end
    if #ids == 0 then return nothing(paused, lease_ms) end
    -- fences grow even when the clock steps back or a failover forgot the last ones
    local fence = math.max(number(setting.fence, 0) + 1, time[1] * 1000000 + time[2])
    call('HSET', key.meta, 'fence', fence + #ids - 1)
    leases.longest(lease_ms)
    -- the first lease notes which server gave it, so that already the first restart is noticed
    if not setting.run_id then call('HSET', key.meta, 'run_id', leases.run_id()) end
    if not recorded then return {now, deadline, fence, ids, false, false, false, rest} end -- a server sends empty lists more slowly
    local failed, lost = fields(key.attempts, ids), fields(key.crashes, ids)
    return {now, deadline, fence, ids, failed, lost, bodies or fields(key.payload, ids), rest}
  end)
end
