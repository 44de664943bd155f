-- ack: end leases as done, or for a time, and in the same step put the tasks that they found.
-- KEYS  todos in_progress done failed scheduled leases owners lock done_at payload attempts crashes errors runtime meta stats bell alarm calls
-- PARTS open items drop calls replay wake log hostname polite add
-- ARGV  1 call id   2 age of the call, ms   3 again in, ms, or -1   4 payload for then, or ''
--       5.. count, runs of (token, length, id * length)
--       then, for one lease, what it found: count, id * count, count of payloads, (position, payload) *
-- Reply letters, one a lease: O acked; R this very call was carried out before; L is not this token's
local call_id, again_ms = ARGV[1], tonumber(ARGV[3])
local ids, tokens, at = read_leases(5)
local yes, codes, ended, lost = mine(ids, tokens), {}, {}, 0
local keep = settings[5] or 'forever'
for i = 1, #ids do
  codes[i] = 'L'
  if yes[i] then
    local moved
    if keep == 'no' or again_ms >= 0 then
      moved = redis.call('SREM', in_progress, ids[i])
    else
      moved = redis.call('SMOVE', in_progress, done, ids[i])
    end
    if moved == 1 then
      codes[i] = 'O'
      ended[#ended + 1] = ids[i]
    end
  end
  if codes[i] == 'L' then lost = lost + 1 end
end
if #ended > 0 then
  drop(ended)
  if redis.call('EXISTS', payload, attempts, crashes, errors) > 0 then
    if again_ms < 0 then redis.call('HDEL', payload, unpack(ended)) end
    redis.call('HDEL', attempts, unpack(ended))
    redis.call('HDEL', crashes, unpack(ended))
    redis.call('HDEL', errors, unpack(ended))
  end
  redis.call('HINCRBY', stats, 'acked', #ended)
  if again_ms >= 0 then
    local dues = {}
    for i = 1, #ended do
      dues[2 * i - 1], dues[2 * i] = now + again_ms, ended[i]
    end
    redis.call('ZADD', scheduled, unpack(dues))
    redis.call('HINCRBY', stats, 'again', #ended)
    if ARGV[4] ~= '' then redis.call('HSET', payload, ended[1], ARGV[4]) end
    rouse(now + again_ms)
  elseif keep ~= 'forever' and keep ~= 'no' then
    local times = {}
    for i = 1, #ended do
      times[2 * i - 1], times[2 * i] = now, ended[i]
    end
    redis.call('ZADD', done_at, unpack(times))
  end
  if polite then
    depart(ended, hosts_of(ended), 1, 0)
    if again_ms < 0 then ungroup(ended) end
    turn()
  end
  if ARGV[at] then
    local found, payloads = read_tasks(at)
    if #found > 0 then add(found, payloads, false, false, '') end
  end
end
local letters = judge(call_id, codes, lost)
if #ended > 0 then remember(call_id, codes, lost) end
return letters
