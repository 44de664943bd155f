-- forget: remove tasks from every state; a worker that runs one finds its lease lost.
-- KEYS  todos in_progress done failed scheduled leases owners lock done_at payload attempts crashes errors runtime meta stats bell alarm
-- PARTS open drop wake log hostname polite add
-- SOUND stats alarm leases owners scheduled; done_at payload attempts crashes errors releases groups runtime traces trace_uses trace_texts trace_at
-- ARGV  1 call id   2 age of the call, ms   3.. id *
-- Reply letters, one an id: t w p d f s the state it was in; u it was in none
local ids, codes = {unpack(ARGV, 3)}, {}
local where, count, running, seen = find(ids), 0, {}, {}
for i = 1, #ids do
  codes[i] = where[i] or 'u'
  if where[i] and not seen[ids[i]] then
    seen[ids[i]], count = true, count + 1
    if where[i] == 'p' then running[#running + 1] = ids[i] end
  end
end
local names = polite and hosts_of(ids)
sound()
redis.call('SREM', todos, unpack(ids))
redis.call('SREM', in_progress, unpack(ids))
redis.call('SREM', done, unpack(ids))
redis.call('SREM', failed, unpack(ids))
redis.call('ZREM', scheduled, unpack(ids))
redis.call('ZREM', done_at, unpack(ids))
redis.call('HDEL', payload, unpack(ids))
clear(ids)
drop(running)
if polite then
  redis.call('SREM', waiting, unpack(ids))
  local left, left_names = {}, {}
  for i = 1, #ids do
    if where[i] == 't' or where[i] == 'p' then
      left[#left + 1], left_names[#left + 1] = ids[i], names[i]
    elseif where[i] == 'w' then
      abandon(ids[i], names[i])
    end
  end
  depart(left, left_names, 0, 0)
  turn()
end
ungroup(ids)
if count > 0 then
  count_up(stats, 'forgotten', count)
end
return table.concat(codes)
