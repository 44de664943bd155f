-- extend: let leases run on from now; also those that ran out but were not taken back. Never past max_runtime.
-- ARGS  1 call id   2 age of the call, ms   3 timeout, ms   4.. count, runs of (token, length, id * length)
-- Reply {now ms, earliest deadline of those extended ms, letters}, one per lease: O extended; X has reached its
--       max_runtime; c extended, but somebody has cancelled the task, so its handler is to stop; L the lease is not
--       this token's
verb('extend', {flags = {'allow-oom'}, reads = {'schema', 'uses', 'lease_ms', 'wake_at'}}, function()
  local lease_ms = tonumber(args[3])
  local ids, tokens = leases.read(4)
  local yes, by = leases.mine(ids, tokens), cancel.marks_of(ids)
  local limits = has('runtime') and call('HMGET', key.runtime, unpack(ids))
  local codes, first, any = {}, now + lease_ms, false
  for i = 1, #ids do
    local left = limits and number(limits[i], math.huge) - now or lease_ms
    if not yes[i] then
      codes[i] = 'L'
    elseif left <= 0 then
      codes[i], yes[i] = 'X', false
    else
      codes[i], any = by[i] and 'c' or 'O', true
      if left < lease_ms then
        yes[i], first = false, math.min(first, now + left)
        leases.lock({ids[i]}, {tokens[i]}, left, true)
        call('ZADD', key.leases, now + left, ids[i])
      end
    end
  end
  local whole_ids = chosen(ids, yes)
  if #whole_ids > 0 then
    leases.lock(whole_ids, chosen(tokens, yes), lease_ms, true)
    call('ZADD', key.leases, unpack(alike(whole_ids, now + lease_ms)))
  end
  if any then
    wake.rouse(first)
    leases.longest(lease_ms)
  end
  return {now, first, table.concat(codes)}
end)
