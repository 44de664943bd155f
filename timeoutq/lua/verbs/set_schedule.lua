-- set_schedule: write a schedule as a client has worked it out: set, move, pause, resume or cancel it.
-- ARGS  1 call id, nonce   2 age of the call, ms   3 schedule   4 seen: what the client has seen, - for none: three
--       words, which are the state, the next tick, ms, and the call that wrote the definition
--       5 state, r|p|e|x: r runs, p paused, e ended, x removed   6 next tick, ms: 0 for none   7.. sections
-- SECTIONS  definition=1 JSON   digest=1 its digest   source=1 c code, s set   anew=0 the counts begin anew
--       counts=n of an export: last tick, ms; ticks put, skipped, missed   skipped=1 how many ticks a pause has left
--       out   zones=1 the version of the data of time zones that gave the next tick   unread=0 nobody can read the
--       definition that is there: the ticks that are due by it are lost
-- Reply letter: O done; C somebody else has changed the schedule meanwhile, or a tick is due that would be lost, so it
--       is to be put first; F the queue has 10,000 schedules already
verb('set_schedule', {}, function()
  local name, seen, state, next_ms = args[3], args[4], args[5], tonumber(args[6])
  local given, refused = sections(7, ' definition=1 digest=1 source=1 anew=0 counts=n skipped=1 zones=1 unread=0')
  if refused then return refused end
  -- a record without a definition is written anew
  local one = call('HEXISTS', key.schedules, name) == 1 and schedules.get(name) or nil
  if args[2] ~= '0' and (one and one.rev == args[1] or not one and state == 'x') then
    calls.mark()
    return 'O'
  end
  if (one and string.format('%s %.0f %s', one.state, one.next, one.rev) or '-') ~= seen then return 'C' end
  if not one and state ~= 'x' and call('HLEN', key.schedules) >= 10000 then return 'F' end
  if state == 'x' then
    call('HDEL', key.schedules, name)
    call('HDEL', key.ticked, name)
    call('ZREM', key.ticks, name)
    if call('EXISTS', key.schedules) == 0 then settings.use('schedules', false) end
    calls.mark()
    return 'O'
  end
  if not one and not given.definition then return 'C' end
  local due = one and one.state == 'r' and one.next > 0 and one.next <= now
  if due and not given.unread and (state ~= 'r' or next_ms ~= one.next) then return 'C' end
  one = one or {last = 0, put = 0, skipped = 0, missed = 0, renewed = now, digest = '-', source = 's'}
  if one.next ~= next_ms then one.zones = given.zones end
  one.rev, one.state, one.next = args[1], state, next_ms
  local counts, skipped = given.counts or given.anew and {}, number(given.skipped, 0)
  if counts then
    one.last, one.put, one.skipped, one.missed = number(counts[1], 0), number(counts[2], 0), number(counts[3], 0), number(counts[4], 0)
  end
  if skipped > 0 then
    if not counts then one.skipped = one.skipped + skipped end
    count_up(key.stats, 'ticks_skipped', skipped)
  end
  if given.definition then
    call('HSET', key.schedules, name, given.definition)
    one.digest, one.source, one.renewed = given.digest or '-', given.source or 's', now
  end
  schedules.write(name, one)
  settings.exists()
  settings.use('schedules', true)
  if state == 'r' and next_ms > 0 then wake.rouse(next_ms) end
  return 'O'
end)
