-- crash: a supervisor saw the process die that ran these leases; it says so without waiting for their end.
-- ARGS  1 call id   2 age of the call, ms   3 reason   4.. count, runs of (token, length, id * length)
-- Reply letters, one per lease: O taken back; f that was a crash too many, and the task is in failed; L the lease is not this token's
verb('crash', {flags = {'allow-oom'}, by = 5}, function()
  local ids, tokens = leases.read(4)
  local yes, codes, dead, was = leases.mine(ids, tokens), {}, {}, {}
  for i = 1, #ids do
    codes[i] = yes[i] and 'O' or 'L'
    if yes[i] then
      dead[#dead + 1], was[#dead + 1] = ids[i], tokens[i]
    end
  end
  if #dead > 0 then
    local back, given_up, spent = leases.crash(dead, was, args[3])
    count_up(key.stats, 'crashed', back + given_up)
    local failing = {}
    for i = 1, #spent do failing[spent[i]] = true end
    for i = 1, #ids do
      if yes[i] and failing[ids[i]] then codes[i] = 'f' end
    end
  end
  return table.concat(codes)
end)
