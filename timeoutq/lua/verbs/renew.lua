-- renew: code declares its schedules again; those that were paused because nobody did so run again.
-- ARGS  1 call id   2 age of the call, ms   3.. (schedule, digest) *: the digest of its definition
-- Reply letters, one per schedule: O renewed; K set by a person, and what the person has set counts; N to be set, for
--       there is none, or the definition is another one
verb('renew', {flags = {'allow-oom'}}, function()
  local codes, wrote = {}, false
  for i = 3, #args, 2 do
    local one = has('schedules') and schedules.get(args[i])
    local code = one and (one.source == 's' and 'K' or one.digest == args[i + 1] and 'O') or 'N'
    codes[#codes + 1] = code
    -- an early end of the hour does no harm, so each schedule is written once in ten seconds at most
    if code == 'O' and (one.state == 'u' or math.abs(now - one.renewed) >= 10000) then
      wrote, one.renewed = true, now
      if one.state == 'u' then
        one.state = 'r'
        wake.rouse(one.next)
      end
      schedules.write(args[i], one)
    end
  end
  if not wrote then calls.mark() end
  return table.concat(codes)
end)
