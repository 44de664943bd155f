-- renew: code declares its schedules again; those that were paused because nobody did so run again.
-- ARGS  1 call id   2 age of the call, ms   3.. (schedule, digest) *: the digest of its definition
-- Reply letters, one per schedule: O renewed; K set by a person, and what the person has set counts; N to be set, for there is
--       none, or the definition is another one
verb('renew', {flags = {'allow-oom'}}, function()
  local codes, names, records = {}, {}, {}
  for i = 3, #args, 2 do names[#names + 1] = args[i] end
  if has('schedules') and #names > 0 then records = call('HMGET', key.ticked, unpack(names)) end
  local wrote = false
  for i = 1, #names do
    local one = schedules.read(records[i])
    codes[i] = one and (one.source == 's' and 'K' or one.digest == args[2 + 2 * i] and 'O') or 'N'
    -- an early end of the hour does no harm, so each schedule is written once in ten seconds at most
    if codes[i] == 'O' and (one.state == 'u' or math.abs(now - one.renewed) >= 10000) then
      wrote, one.renewed = true, now
      if one.state == 'u' then
        one.state = 'r'
        wake.rouse(one.next)
      end
      schedules.write(names[i], one)
    end
  end
  if not wrote then calls.mark() end
  return table.concat(codes)
end)
