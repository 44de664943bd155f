-- tick: put the tasks of the ticks of a schedule that are due, and store the next tick: both happen, or neither.
-- ARGS  1 call id, nonce   2 age of the call, ms   3 schedule   4 call: the one that wrote its definition   5 tick, ms:
--       the next one as it was stored   6 next, ms: the next tick from now on, 0 for none   7 last, ms: the last of the
--       ticks that are put, 0 for none   8 missed, number: how many are   9 skipped, number: because they have the id
--       of one that is put   10.. count, id * count; sections
-- SECTIONS  payload=1 the payload of all tasks   group=1 their host   priority=1 their priority   zones=1 the version of
--       the data of time zones that gave the next tick
-- Reply letters, one per id: A added; r raised, as by put; t w p d f s the state it already is in
-- Reply letter: C the schedule is not as it was, for somebody else has put the
--       tick or changed the schedule; E the tick is not due yet; U no code has declared the schedule for an hour, and
--       it is paused
verb('tick', {by = 3}, function()
  local name = args[3]
  local ids, at = tasks.read(10)
  local given, refused = sections(at, ' payload=1 group=1 priority=1 zones=1')
  if refused then return refused end
  local priorities, unfit = priority.of(ids, given)
  if unfit then return unfit end
  local one = has('schedules') and schedules.get(name)
  if not one or one.state ~= 'r' or one.rev ~= args[4] or one.next ~= tonumber(args[5]) then
    -- perhaps this very call has done so before: the replicas are to confirm that
    calls.mark()
    return 'C'
  end
  if one.next > now then return 'E' end
  if one.source == 'c' and one.renewed <= now - schedules.UNDECLARED then
    one.state = 'u'
    schedules.write(name, one)
    return 'U'
  end
  given.payloads = given.payload and {}
  for i = 1, given.payload and #ids or 0 do given.payloads[i] = given.payload end
  local codes = #ids > 0 and tasks.add(ids, given, true, false, priorities) or ''
  local _, put = string.gsub(codes, 'A', '')
  local skipped, missed = #ids - put + tonumber(args[9]), tonumber(args[8])
  one.next, one.last = tonumber(args[6]), math.max(one.last, tonumber(args[7]))
  one.zones = given.zones
  one.put, one.skipped, one.missed = one.put + put, one.skipped + skipped, one.missed + missed
  if one.next == 0 then one.state = 'e' end
  schedules.write(name, one)
  if put > 0 then count_up(key.stats, 'ticked', put) end
  if skipped > 0 then count_up(key.stats, 'ticks_skipped', skipped) end
  if missed > 0 then count_up(key.stats, 'ticks_missed', missed) end
  return codes
end)
