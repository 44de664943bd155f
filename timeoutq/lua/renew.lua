-- renew: code declares its schedules again; those that were paused because nobody did so run again.
-- KEYS  lock meta bell alarm
-- PARTS open mark wake ticking
-- SOUND alarm; ticks ticked
-- ARGV  1 call id   2 age of the call, ms   3.. (schedule, digest) *: the digest of its definition
-- Reply letters, one per schedule: O renewed; K set by a person, and what the person has set counts; N to be set, for there is
--       none, or the definition is another one
local codes, names, records = {}, {}, {}
for i = 3, #ARGV, 2 do names[#names + 1] = ARGV[i] end
if has('schedules') and #names > 0 then records = redis.call('HMGET', key('ticked'), unpack(names)) end
sound()
local wrote = false
for i = 1, #names do
  local one = read_ticked(records[i])
  codes[i] = one and (one.source == 's' and 'K' or one.digest == ARGV[2 + 2 * i] and 'O') or 'N'
  -- an early end of the hour does no harm, so each schedule is written once in ten seconds at most
  if codes[i] == 'O' and (one.state == 'u' or math.abs(now - one.renewed) >= 10000) then
    if not wrote then even_when_full() end
    wrote, one.renewed = true, now
    if one.state == 'u' then
      one.state = 'r'
      rouse(one.next)
    end
    write_ticked(names[i], one)
  end
end
if not wrote then mark() end
return table.concat(codes)
