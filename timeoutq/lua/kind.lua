-- kind: failed tasks of one kind become ready again, with a clean record, or are forgotten; those that were given up first go first.
-- KEYS  todos in_progress done failed scheduled done_at payload attempts crashes errors lock meta stats bell alarm
-- PARTS open ready done log rerun mark results
-- SOUND stats alarm todos failed; payload attempts crashes errors releases groups traces trace_uses trace_texts trace_at kinds kind_of
-- VERB  ARGV[3] .. '_kind'
-- ARGV  1 call id   2 age of the call, ms   3 act, retry|forget   4 text: of the kind; empty for the tasks of all kinds beyond the thousandth
--       5 before, ms: only tasks that were given up by then, 0 for now   6 most, number: how many tasks
-- Reply {moved number, left number, before ms}: how many have left failed, how many of those are left, and until when they were given up
local text, before = ARGV[4], number(ARGV[5], 0)
if before < 1 then before = now end
local at = text == '' and 0 or number(redis.call('HGET', key('kinds'), '=' .. text))
if not at then
  mark()
  return {0, 0, before}
end
local first, last = string.format('%.0f', at * KIND), string.format('%.0f', at * KIND + math.min(before, KIND - 1))
local ids = redis.call('ZRANGEBYSCORE', key('kind_of'), first, last, 'LIMIT', 0, ARGV[6])
if #ids == 0 then
  mark()
  return {0, 0, before}
end
sound()
local moved, moved_names = {}, {}
if ARGV[3] == 'retry' then
  local names = hosts_of(ids)
  for i = 1, #ids do
    if redis.call('SMOVE', failed, entry(names[i]), ids[i]) == 1 then moved[#moved + 1], moved_names[#moved + 1] = ids[i], names[i] end
  end
else
  for i = 1, #ids do
    if redis.call('SREM', failed, ids[i]) == 1 then moved[#moved + 1] = ids[i] end
  end
end
leave_kinds(ids)
if #moved > 0 then
  clear(moved)
  if ARGV[3] == 'retry' then
    count_up(stats, 'retried', #moved)
    arrive(moved, moved_names)
    turn()
  else
    redis.call('HDEL', payload, unpack(moved))
    ungroup(moved)
    if uses then
      forget_priorities(moved)
      tell_ended(moved)
    end
    count_up(stats, 'forgotten', #moved)
  end
end
return {#moved, redis.call('ZCOUNT', key('kind_of'), first, last), before}
