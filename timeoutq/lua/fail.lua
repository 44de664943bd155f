-- fail: a handler failed. The task is scheduled for another attempt, or moved to failed when there is none left.
-- KEYS  todos in_progress failed scheduled leases owners lock attempts runtime meta stats bell alarm calls
-- PARTS open items drop calls replay wake log hostname polite
-- SOUND stats leases calls alarm failed scheduled; runtime errors error_log traces trace_uses trace_texts trace_at
-- ARGV  1 call id   2 age of the call, ms   3.. count, runs of (token, length, id * length)
--       then for each lease: retry in ms, or -1 to give up, with a space and the ms to block its host for, if any; error text;
--       digest of its traceback, or ''; after all leases the tracebacks: (digest, text) *
-- Reply letters, one a lease: O failed; R this very call was carried out before; L is not this token's
local call_id = ARGV[1]
local ids, tokens, at = read_leases(3)
local yes, codes, ended, lost, gave_up = mine(ids, tokens), {}, {}, 0, 0
local texts = {}
for i = at + 3 * #ids, #ARGV, 2 do texts[ARGV[i]] = ARGV[i + 1] end
local counts = redis.call('HMGET', attempts, unpack(ids))
local held, seen, blocks = redis.call('SMISMEMBER', in_progress, unpack(ids)), {}, {}
sound()
even_when_full()
for i = 1, #ids do
  local retry, message, blocked = tonumber(ARGV[at + 3 * i - 3]), ARGV[at + 3 * i - 2], nil
  if not retry then
    retry, blocked = string.match(ARGV[at + 3 * i - 3], '^(%S+) (%d+)$')
    retry = tonumber(retry)
  end
  codes[i] = 'L'
  if yes[i] and held[i] == 1 and not seen[ids[i]] then
    -- a lease ends only after its outcome is written: so a script that is refused half-way loses nothing
    seen[ids[i]], codes[i], ended[#ended + 1] = true, 'O', ids[i]
    if blocked then blocks[#ended] = now + tonumber(blocked) end
    redis.call('HSET', attempts, ids[i], number(counts[i], 0) + 1)
    log_error(ids[i], message, ARGV[at + 3 * i - 1], texts)
    if retry < 0 then
      gave_up = gave_up + 1
      redis.call('SMOVE', in_progress, failed, ids[i])
    else
      redis.call('ZADD', scheduled, now + retry, ids[i])
      rouse(now + retry)
      redis.call('SREM', in_progress, ids[i])
    end
  end
  if codes[i] == 'L' then lost = lost + 1 end
end
if #ended > 0 then
  drop(ended)
  if ARGV[at + 3 * #ids] then trim_traces() end
  count_up(stats, 'failed', #ended)
  if polite then
    local names = hosts_of(ended)
    depart(ended, names, 1, 1)
    for i, until_ms in pairs(blocks) do
      if names[i] then block(names[i], until_ms, string.match(tokens[1], '^[^#]*')) end
    end
    turn()
  end
  if gave_up > 0 then count_up(stats, 'gave_up', gave_up) end
end
return settle(call_id, codes, lost, #ended)
