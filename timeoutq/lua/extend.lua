-- extend: let leases run on from now; also those that ran out but were not taken back. Never past max_runtime.
-- KEYS  in_progress leases owners lock runtime meta alarm bell
-- PARTS open items wake locks
-- SOUND leases alarm
-- ARGV  1 call id   2 age of the call, ms   3 timeout, ms   4.. count, runs of (token, length, id * length)
-- Reply {now ms, earliest deadline of those extended ms, letters}, one per lease: O extended; X has reached its max_runtime; c extended, but
--       somebody has cancelled the task, so its handler is to stop; L the lease is not this token's
local lease_ms = tonumber(ARGV[3])
local ids, tokens = read_leases(4)
local yes, codes, scores = mine(ids, tokens), {}, {}
local ends = redis.call('EXISTS', runtime) == 1 and redis.call('HMGET', runtime, unpack(ids)) or {}
local first, locks = now + lease_ms, locks_of(ids)
local by = has('cancel') and redis.call('HMGET', key('cancels'), unpack(ids)) or {}
sound()
for i = 1, #ids do
  local left = lease_ms
  local ending = yes[i] and number(ends[i])
  if ending then
    left = math.min(left, ending - now)
  end
  if not yes[i] then
    codes[i] = 'L'
  elseif left <= 0 then
    codes[i] = 'X'
  else
    codes[i] = by[i] and 'c' or 'O'
    -- PEXPIRE goes first: a full server allows it, and all that follows it in this script
    if redis.call('PEXPIRE', locks[i], left) == 0 then
      redis.call('PSETEX', locks[i], left, tokens[i])
    end
    scores[#scores + 1] = now + left
    scores[#scores + 1] = ids[i]
    first = math.min(first, now + left)
  end
end
if #scores > 0 then
  redis.call('ZADD', leases, unpack(scores))
  rouse(first)
  if lease_ms > (longest_lease or 0) then
    redis.call('HSET', meta, 'lease_ms', lease_ms)
  end
end
return {now, first, table.concat(codes)}
