-- tick: put the tasks of the ticks of a schedule that are due, and store the next tick: both happen, or neither.
-- KEYS  todos in_progress done failed scheduled done_at payload attempts crashes errors lock meta stats bell alarm
-- PARTS open sections mark add ticking
-- SOUND stats alarm; schedules ticks ticked
-- ARGV  1 call id   2 age of the call, ms   3 schedule   4 the call that wrote its definition   5 the next tick as it was stored, ms
--       6 the next tick from now on, ms, 0 for none   7 the last of the ticks that are put, ms, 0 for none   8 how many are missed
--       9 how many are skipped, because they have the id of one that is put   10.. count, id * count; sections
-- SECTIONS  payload=1 the payload of all tasks   group=1 their host   priority=1 their priority
-- Reply letters, one per id as by put; or one that put does not give: C the schedule is not as it was, for somebody else has put the
--       tick or changed the schedule; E the tick is not due yet; U no code has declared the schedule for an hour: it is paused
local name = ARGV[3]
local ids, at = read_ids(10)
local given, refused = sections(at, ' payload=1 group=1 priority=1')
if refused then return refused end
local priorities, unfit
if given.priority and #ids > 0 then priorities, unfit = rarely('priorities_of')(ids, given) end
if unfit then return unfit end
local one = has('schedules') and read_ticked(redis.call('HGET', key('ticked'), name))
sound()
if not one or one.state ~= 'r' or one.rev ~= ARGV[4] or one.next ~= tonumber(ARGV[5]) then
  -- perhaps this very call has done so before: the replicas are to confirm that
  mark()
  return 'C'
end
if one.next > now then return 'E' end
if one.source == 'c' and one.renewed <= now - UNDECLARED then
  even_when_full()
  one.state = 'u'
  write_ticked(name, one)
  return 'U'
end
local codes = ''
if #ids > 0 then
  if given.payload then
    given.payloads = {}
    for i = 1, #ids do given.payloads[i] = given.payload end
  end
  codes = add(ids, given, true, false, priorities)
end
local _, put = string.gsub(codes, 'A', '')
local skipped, missed = #ids - put + tonumber(ARGV[9]), tonumber(ARGV[8])
one.next, one.last = tonumber(ARGV[6]), math.max(one.last, tonumber(ARGV[7]))
one.put, one.skipped, one.missed = one.put + put, one.skipped + skipped, one.missed + missed
if one.next == 0 then one.state = 'e' end
write_ticked(name, one)
if put > 0 then count_up(stats, 'ticked', put) end
if skipped > 0 then count_up(stats, 'ticks_skipped', skipped) end
if missed > 0 then count_up(stats, 'ticks_missed', missed) end
return codes
