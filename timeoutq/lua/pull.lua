-- pull: take tasks for good, without a lease: at most once.
-- KEYS  todos done done_at payload attempts crashes errors meta stats bell alarm
-- PARTS open wake pick log hostname polite
-- SOUND stats alarm done; done_at payload attempts crashes errors releases groups traces trace_uses trace_texts trace_at
-- ARGV  1 call id   2 age of the call, ms   3 how many
-- Reply {ids, payloads}; a reply brings 4 MiB of payloads at most, a payload more or less
if paused then
  return {{}, {}}
end
local picks, ids = pick(tonumber(ARGV[3]), redis.call('SCARD', todos)), {}
local bodies = {}
-- whoever pulls has the only copy: it is read before the tasks are taken
local known, bytes = {}, 0
if redis.call('EXISTS', payload) == 1 then
  while #known < #picks and bytes < 4194304 do
    local some = redis.call('HMGET', payload, unpack(picks, #known + 1, math.min(#known + 8, #picks)))
    for i = 1, #some do
      if bytes < 4194304 then known[#known + 1], bytes = some[i], bytes + (some[i] and #some[i] or 0) end
    end
  end
  picks = {unpack(picks, 1, #known)}
end
local recorded = sound()
for i = 1, #picks do
  local moved
  if keep_done == 'no' then
    moved = redis.call('SREM', todos, picks[i])
  else
    moved = redis.call('SMOVE', todos, done, picks[i])
  end
  if moved == 1 then ids[#ids + 1], bodies[#ids + 1] = picks[i], known[i] or false end
end
if #ids == 0 then
  return {{}, {}}
end
if recorded then
  redis.call('HDEL', payload, unpack(ids))
  clear(ids)
end
if keep_done ~= 'forever' and keep_done ~= 'no' then
  for i = 1, #ids do
    redis.call('ZADD', done_at, now, ids[i])
  end
end
count_up(stats, 'pulled', #ids)
if polite then
  depart(ids, hosts_of(ids), 1, 0)
  turn()
end
if recorded then ungroup(ids) end
return {ids, bodies}
