-- pull: take tasks for good, without a lease: at most once.
-- KEYS  todos done done_at payload attempts crashes errors lock meta stats bell alarm
-- PARTS open pick fit ready done log
-- SOUND stats alarm done; done_at payload attempts crashes errors releases groups traces trace_uses trace_texts trace_at
-- ARGV  1 call id   2 age of the call, ms   3 how many, number
-- ONCE  a second run would take other tasks; those of the lost reply are gone
-- Reply {{id *}, {payload? *}}: a reply brings 4 MiB of payloads at most, a payload more or less
if has('durable') then
  return {err = 'PULL takes tasks without a lease, so a failover could hand them out again, and the queue is durable: claim '
    .. 'tasks and ack them, or configure the queue with durable=0'}
end
if paused then
  return {{}, {}}
end
-- whoever pulls has the only copy: it is read before the tasks are taken
local picks, known = fit(pick(tonumber(ARGV[3]), redis.call('SCARD', todos)))
local bodies, taken = {}, {}
local recorded = sound()
if done_sound and #picks > 0 then done_sound(picks) end
for i = 1, #picks do taken[i] = true end
local ids = finish(todos, picks, taken)
if #ids == 0 then
  return {{}, {}}
end
for i = 1, #picks do
  if taken[i] then bodies[#bodies + 1] = known and known[i] or false end
end
if recorded then
  redis.call('HDEL', payload, unpack(ids))
  clear(ids)
end
count_up(stats, 'pulled', #ids)
pass_on(ids, 1)
if recorded then ungroup(ids) end
if tell_ended then tell_ended(ids, nil, true) end
return {ids, bodies}
