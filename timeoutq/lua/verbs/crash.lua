-- crash: a supervisor saw the process die that ran these leases; it says so without waiting for their end.
-- ARGS  1 call id   2 age of the call, ms   3 reason   4.. count, runs of (token, length, id * length)
-- Reply letters, one per lease: O taken back; f that was a crash too many, and the task is in failed; L the lease is
--       not this token's
verb('crash', {flags = {'allow-oom'}, by = 5}, function()
  local ids, tokens = leases.read(4)
  local yes, codes, failing = leases.mine(ids, tokens), {}, {}
  local dead, was = chosen(ids, yes), chosen(tokens, yes)
  if #dead > 0 then
    local back, spent = leases.crash(dead, was, args[3])
    count_up(key.stats, 'crashed', back + #spent)
    for _, id in ipairs(spent) do failing[id] = true end
  end
  for i = 1, #ids do codes[i] = yes[i] and (failing[ids[i]] and 'f' or 'O') or 'L' end
  return table.concat(codes)
end)
