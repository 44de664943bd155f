-- claim: lease ready tasks to a token. Sent again with the same token, it gives the leases that the first call took.
-- ARGS  1 token   2 age of the call, ms   3 how many, number   4 timeout, ms
--       5 not after, ms: server time past which the client has given up; 0 for never   6.. sections
-- SECTIONS  max_runtime=ms for which the leases may be held in all   share=1 how many workers there are; no worker takes more than its part of a short queue
--       from=1 where a call that was sent again goes on to look for its leases, as its part before replied
-- Reply {now ms, deadline ms, first fence number, {id *}, {failures? *}?, {crashes? *}?, {payload? *}?, [from]}: the last three are nil where no task has any
-- Reply {now ms, next event ms, paused 0 or 1, [from]}: there is nothing to lease
-- from: where to go on, when the call was sent again and has looked through only a part of the leases
verb('claim', {flags = {'allow-oom'}, reads = {'schema', 'uses', 'paused', 'lease_ms', 'wake_at', 'fence', 'run_id'}}, function()
  local token, age, n, paused = args[1], tonumber(args[2]), tonumber(args[3]), setting.paused == '1'
  local lease_ms, not_after = tonumber(args[4]), tonumber(args[5])
  local given, refused = sections(6, ' max_runtime=ms share=1 from=1')
  if refused then return refused end
  local runtime_ms = tonumber(given.max_runtime or 0)
  if not_after > 0 and now > not_after then
    return {err = 'LATE the claim arrived ' .. (now - not_after) .. ' ms after its caller gave up'}
  end
  if runtime_ms > 0 and runtime_ms < lease_ms then
    lease_ms = runtime_ms
  end
  local deadline = now + lease_ms
  local ids, rest, recorded, bodies = {}, nil, true, nil
  local took, from, last
  if given.from then took, from, last = string.match(given.from, '^(%d) (%S+) (.*)$') end
  if age > 0 or from then
    -- read a part of the leases that may be its own: those after the last lease of the part before; if that lease has moved, those
    -- from its former deadline on. This call may have been on its way for five seconds more than the one that took them
    local first
    local newest = deadline + 1 -- a claim over HTTP that was sent again in this ms has extended them until then
    if from and call('ZSCORE', key.leases, last) == from then
      local rank = call('ZRANK', key.leases, last) + 1
      first = call('ZRANGE', key.leases, rank, rank + 9999)
    else
      first = call('ZRANGEBYSCORE', key.leases, from or now - age - 5000 + lease_ms, newest, 'LIMIT', 0, 10000)
    end
    for at = 1, #first, 500 do
      local chunk = {unpack(first, at, math.min(at + 499, #first))}
      local held = call('HMGET', key.owners, unpack(chunk))
      for i = 1, #chunk do
        if held[i] == token then ids[#ids + 1] = chunk[i] end
      end
    end
    if #first == 10000 then
      local score = call('ZSCORE', key.leases, first[10000])
      if moment(score) and moment(score) <= newest then
        rest = ((took == '1' or #ids > 0) and '1 ' or '0 ') .. score .. ' ' .. first[10000]
      end
    end
    -- they run since the first call
    if #ids > 0 then deadline = moment(call('ZSCORE', key.leases, ids[1])) or deadline end
  end
  if #ids == 0 and (rest or took == '1') then
    return {now, 0, paused and 1 or 0, rest}
  end
  if #ids == 0 and not paused then
    local ready_count = call('SCARD', key.todos)
    recorded = call('EXISTS', key.payload, key.attempts, key.crashes) > 0
    -- who asks for 0 tasks has hung up behind a bell, maybe: a server that gets a put and the end of a connection at once spends
    -- the stroke on that connection, and does not run the claim behind it. A Redis that is full rings no bell
    if n == 0 and ready_count > 0 then pcall(wake.ring) end
    n = math.min(n, math.max(1, math.ceil(ready_count / tonumber(given.share or 1))))
    local picks = n > 0 and ready_count > 0 and tasks.pick(n, ready_count) or {} -- of 0 tasks it asks for those that it took before, to give them back
    if recorded and #picks > 0 and call('EXISTS', key.crashes) == 1 then
      -- a task that lost two leases is a suspect: it is handed out alone
      local counts, others = call('HMGET', key.crashes, unpack(picks)), {}
      for i = 1, #picks do
        if number(counts[i], 0) < 2 then
          others[#others + 1] = picks[i]
        elseif i == 1 then
          others = {picks[1]}
          break
        end
      end
      picks = others
    end
    if recorded and #picks > 0 then picks, bodies = tasks.fit(picks) end
    local span, ends, held = lease_ms, deadline, {}
    if #picks > 4 then
      -- as text: a server writes out a number anew each time that it is passed on, and Redis is slow at this
      span, ends = string.format('%.0f', lease_ms), string.format('%.0f', deadline)
    end
    for i = 1, #picks do
      if quiet('SMOVE', key.todos, key.in_progress, picks[i]) == 1 then
        ids[#ids + 1] = picks[i]
        held[#ids] = token
      end
    end
    if #ids < #picks then bodies = nil end -- each payload stands at the place of its task
    if #ids > 0 then
      leases.lock(ids, held, span)
      local deadlines, tokens = {}, {}
      for i = 1, #ids do
        deadlines[2 * i - 1], deadlines[2 * i] = ends, ids[i]
        tokens[2 * i - 1], tokens[2 * i] = ids[i], token
      end
      call('ZADD', key.leases, unpack(deadlines))
      call('HSET', key.owners, unpack(tokens))
      if runtime_ms > 0 then
        for i = 1, #ids do
          tokens[2 * i] = now + runtime_ms
        end
        call('HSET', key.runtime, unpack(tokens))
      end
      count_up(key.stats, 'claimed', #ids)
      if logging then events.moved(ids, key.todos, key.in_progress) end
      wake.rouse(deadline)
      if ready_count > #ids then wake.ring() end
    end
  end
  if #ids == 0 then
    local lease = call('ZRANGE', key.leases, 0, 0, 'WITHSCORES')
    local due = call('ZRANGE', key.scheduled, 0, 0, 'WITHSCORES')
    local a, b = moment(lease[2]) or 0, moment(due[2]) or 0
    local turn = hosts.next_turn()
    if turn and (b == 0 or turn < b) then b = turn end
    local at = (a > 0 and b > 0) and math.min(a, b) or math.max(a, b)
    -- a clock that stepped back made leases longer than anybody asked for: they are cut at once
    local last = a > 0 and call('ZRANGE', key.leases, -1, -1, 'WITHSCORES')
    if last and (moment(last[2]) or math.huge) > now + number(setting.lease_ms, lease_ms) + 1000 then at = now end
    return {now, at, paused and 1 or 0}
  end
  -- fences grow even when the clock steps back or a failover forgot the last ones
  local fence = math.max(number(setting.fence, 0) + 1, time[1] * 1000000 + time[2])
  call('HSET', key.meta, 'fence', fence + #ids - 1)
  if lease_ms > number(setting.lease_ms, 0) then
    call('HSET', key.meta, 'lease_ms', lease_ms)
  end
  -- the first lease notes which server gave it, so that already the first restart is noticed
  if not setting.run_id then call('HSET', key.meta, 'run_id', server.run_id()) end
  local failed, lost = false, false -- a server sends an empty list more slowly
  if recorded then
    failed = call('HMGET', key.attempts, unpack(ids))
    lost = call('HMGET', key.crashes, unpack(ids))
    bodies = bodies or call('HMGET', key.payload, unpack(ids))
  end
  return {now, deadline, fence, ids, failed, lost, bodies or false, rest}
end)
