-- forget: remove tasks from every state; a worker that runs one finds its lease lost.
-- KEYS  todos in_progress done failed scheduled leases owners lock done_at payload attempts crashes errors runtime meta stats bell alarm
-- PARTS open drop find log rerun mark
-- SOUND stats alarm leases owners scheduled; done_at payload attempts crashes errors releases groups runtime traces trace_uses trace_texts trace_at kinds kind_of
-- ARGV  1 call id   2 age of the call, ms   3.. id *
-- Reply letters, one per id: t w p d f s the state it was in; u it was in none
local ids, codes = {unpack(ARGV, 3)}, {}
local where, count, running, seen = find_all(ids), 0, {}, {}
for i = 1, #ids do
  codes[i] = where[i] or 'u'
  if where[i] and not seen[ids[i]] then
    seen[ids[i]], count = true, count + 1
    if where[i] == 'p' then running[#running + 1] = ids[i] end
  end
end
sound()
if done_sound then done_sound(ids, true) end
redis.call('SREM', todos, unpack(ids))
redis.call('SREM', in_progress, unpack(ids))
redis.call('SREM', failed, unpack(ids))
redis.call('ZREM', scheduled, unpack(ids))
undo(ids)
undate(ids)
redis.call('HDEL', payload, unpack(ids))
leave_kinds(ids)
clear(ids)
drop(running)
withdraw(ids, where)
ungroup(ids)
if uses then
  forget_priorities(ids)
  unmark(ids)
  tell_ended(ids)
end
if count > 0 then
  count_up(stats, 'forgotten', count)
else
  mark()
end
return table.concat(codes)
