-- claim: lease ready tasks to a token. Sent again with the same token, it gives the leases that the first call took.
-- KEYS  todos in_progress scheduled leases owners lock payload attempts crashes runtime meta stats bell alarm
-- PARTS open events sections wake pick fit locks server turns
-- SOUND stats leases owners; payload attempts crashes
-- ARGV  1 token   2 age of the call, ms   3 how many, number   4 timeout, ms
--       5 not after, ms: server time past which the client has given up; 0 for never   6.. sections
-- SECTIONS  max_runtime=ms for which the leases may be held in all   share=1 how many workers there are; no worker takes more than its part of a short queue
--       from=1 where a call that was sent again goes on to look for its leases, as its part before replied
-- Reply {now ms, deadline ms, first fence, {id *}, {failures? *}, {crashes? *}, {payload? *}, [from]}: the last three are {} where no task has any
-- Reply {now ms, next event ms, paused 0 or 1, [from]}: there is nothing to lease
-- from: where to go on, when the call was sent again and has looked through only a part of the leases
local token, age, n = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local lease_ms, not_after = tonumber(ARGV[4]), tonumber(ARGV[5])
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
local took, from, last = string.match(given.from or '', '^(%d) (%S+) (.*)$')
if age > 0 or from then
  -- read a part of the leases that may be its own: those after the last lease of the part before; if that lease has moved, those
  -- from its former deadline on. This call may have been on its way for five seconds more than the one that took them
  local first
  local newest = deadline + 1 -- a claim over HTTP that was sent again in this ms has extended them until then
  if from and redis.call('ZSCORE', leases, last) == from then
    local rank = redis.call('ZRANK', leases, last) + 1
    first = redis.call('ZRANGE', leases, rank, rank + 9999)
  else
    first = redis.call('ZRANGEBYSCORE', leases, from or now - age - 5000 + lease_ms, newest, 'LIMIT', 0, 10000)
  end
  for at = 1, #first, 500 do
    local chunk = {unpack(first, at, math.min(at + 499, #first))}
    local held = redis.call('HMGET', owners, unpack(chunk))
    for i = 1, #chunk do
      if held[i] == token then ids[#ids + 1] = chunk[i] end
    end
  end
  if #first == 10000 then
    local score = redis.call('ZSCORE', leases, first[10000])
    if moment(score) and moment(score) <= newest then
      rest = ((took == '1' or #ids > 0) and '1 ' or '0 ') .. score .. ' ' .. first[10000]
    end
  end
  -- they run since the first call
  if #ids > 0 then deadline = moment(redis.call('ZSCORE', leases, ids[1])) or deadline end
end
if #ids == 0 and (rest or took == '1') then
  return {now, 0, paused and 1 or 0, rest}
end
if #ids == 0 and not paused then
  local ready = redis.call('SCARD', todos)
  recorded = sound()
  if rouses(deadline) then redis.call('XLEN', alarm) end -- `rouse` will write it, after the tasks have moved
  if runtime_ms > 0 then redis.call('HLEN', runtime) end
  -- who asks for 0 tasks has hung up behind a bell, maybe: a server that gets a put and the end of a connection at once spends
  -- the stroke on that connection, and does not run the claim behind it. A Redis that is full rings no bell
  if n == 0 and ready > 0 then pcall(ring) end
  n = math.min(n, math.max(1, math.ceil(ready / tonumber(given.share or 1))))
  local picks = n > 0 and ready > 0 and pick(n, ready) or {} -- of 0 tasks it asks for those that it took before, to give them back
  if recorded and #picks > 0 and redis.call('EXISTS', crashes) == 1 then
    -- a task that lost two leases is a suspect: it is handed out alone
    local counts, others = redis.call('HMGET', crashes, unpack(picks)), {}
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
  if recorded and #picks > 0 then picks, bodies = fit(picks) end
  -- as text: a server writes out a number anew each time that it is passed on, and Redis is slow at this
  local locks, span, ends = locks_of(picks), string.format('%.0f', lease_ms), string.format('%.0f', deadline)
  for i = 1, #picks do
    if quiet('SMOVE', todos, in_progress, picks[i]) == 1 then
      ids[#ids + 1] = picks[i]
      quiet('PSETEX', locks[i], span, token)
    end
  end
  if #ids < #picks then bodies = nil end -- each payload stands at the place of its task
  if #ids > 0 then
    local deadlines, tokens = {}, {}
    for i = 1, #ids do
      deadlines[2 * i - 1], deadlines[2 * i] = ends, ids[i]
      tokens[2 * i - 1], tokens[2 * i] = ids[i], token
    end
    redis.call('ZADD', leases, unpack(deadlines))
    redis.call('HSET', owners, unpack(tokens))
    if runtime_ms > 0 then
      for i = 1, #ids do
        tokens[2 * i] = now + runtime_ms
      end
      redis.call('HSET', runtime, unpack(tokens))
    end
    count_up(stats, 'claimed', #ids)
    if moved then
      moved(ids, todos, in_progress)
      tell('claim', token)
    end
    rouse(deadline)
    if ready > #ids then ring() end
  end
end
if #ids == 0 then
  local lease = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')
  local due = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')
  local a, b = moment(lease[2]) or 0, moment(due[2]) or 0
  local turn = next_turn()
  if turn and (b == 0 or turn < b) then b = turn end
  local at = (a > 0 and b > 0) and math.min(a, b) or math.max(a, b)
  -- a clock that stepped back made leases longer than anybody asked for: they are cut at once
  local last = a > 0 and redis.call('ZRANGE', leases, -1, -1, 'WITHSCORES')
  if last and (moment(last[2]) or math.huge) > now + (longest_lease or lease_ms) + 1000 then at = now end
  return {now, at, paused and 1 or 0}
end
-- fences grow even when the clock steps back or a failover forgot the last ones
local known = redis.call('HMGET', meta, 'fence', 'run_id')
local fence = math.max(number(known[1], 0) + 1, time[1] * 1000000 + time[2])
redis.call('HSET', meta, 'fence', string.format('%.0f', fence + #ids - 1))
if lease_ms > (longest_lease or 0) then
  redis.call('HSET', meta, 'lease_ms', lease_ms)
end
-- the first lease notes which server gave it, so that already the first restart is noticed
if not known[2] then redis.call('HSET', meta, 'run_id', run_id()) end
local failures, lost = {}, {}
if recorded then
  failures = redis.call('HMGET', attempts, unpack(ids))
  lost = redis.call('HMGET', crashes, unpack(ids))
  bodies = bodies or redis.call('HMGET', payload, unpack(ids))
end
return {now, deadline, string.format('%.0f', fence), ids, failures, lost, bodies or {}, rest}
