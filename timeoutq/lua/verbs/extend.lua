-- extend: let leases run on from now; also those that ran out but were not taken back. Never past max_runtime.
-- ARGS  1 call id   2 age of the call, ms   3 timeout, ms   4.. count, runs of (token, length, id * length)
-- Reply {now ms, earliest deadline of those extended ms, letters}, one per lease: O extended; X has reached its
--       max_runtime; c extended, but somebody has cancelled the task, so its handler is to stop; L the lease is not
--       this token's
verb('extend', {flags = {'allow-oom'}, reads = {'schema', 'uses', 'lease_ms', 'wake_at'}}, function()
  local lease_ms = tonumber(args[3])
  local ids, tokens = leases.read(4)
  local yes, codes, scores = leases.mine(ids, tokens), {}, {}
  local ends = has('runtime') and call('HMGET', key.runtime, unpack(ids)) or {}
  local first, whole_ids, whole_tokens = now + lease_ms, {}, {}
  local by = cancel.marks_of(ids)
  for i = 1, #ids do
    local left = math.min(lease_ms, number(ends[i], math.huge) - now)
    if not yes[i] then
      codes[i] = 'L'
    elseif left <= 0 then
      codes[i] = 'X'
    else
      codes[i] = by[i] and 'c' or 'O'
      if left == lease_ms then
        whole_ids[#whole_ids + 1], whole_tokens[#whole_ids + 1] = ids[i], tokens[i]
      else
        leases.lock({ids[i]}, {tokens[i]}, left, true)
      end
      scores[#scores + 1], scores[#scores + 2] = now + left, ids[i]
      first = math.min(first, now + left)
    end
  end
  if #scores > 0 then
    leases.lock(whole_ids, whole_tokens, lease_ms, true)
    call('ZADD', key.leases, unpack(scores))
    wake.rouse(first)
    leases.longest(lease_ms)
  end
  return {now, first, table.concat(codes)}
end)
