-- pull: take tasks for good, without a lease: at most once.
-- ARGS  1 call id   2 age of the call, ms   3 how many, number
-- ONCE  a second run would take other tasks; those of the lost reply are gone
-- Reply {{id *}, {payload? *}}: a reply brings 4 MiB of payloads at most, a payload more or less
verb('pull', {flags = {'allow-oom'}}, function()
  if has('durable') then
    return {err = 'PULL takes tasks without a lease, so a failover could hand them out again, and the queue is durable: claim '
      .. 'tasks and ack them, or configure the queue with durable=0'}
  end
  if setting.paused == '1' then return {{}, {}} end
  -- whoever pulls has the only copy: it is read before the tasks are taken
  local picks, known = tasks.fit(tasks.pick(tonumber(args[3]), call('SCARD', key.todos)))
  local bodies, taken = {}, {}
  local recorded = call('EXISTS', key.payload, key.attempts, key.crashes, key.errors, key.releases, key.groups) > 0
  for i = 1, #picks do taken[i] = true end
  local ids = done.finish(key.todos, picks, taken)
  if #ids == 0 then return {{}, {}} end
  for i = 1, #picks do
    if taken[i] then bodies[#bodies + 1] = known and known[i] or false end
  end
  if recorded then
    call('HDEL', key.payload, unpack(ids))
    failures.clear(ids)
  end
  count_up(key.stats, 'pulled', #ids)
  ready.pass_on(ids, 1)
  if recorded then groups.forget(ids) end
  results.tell_ended(ids, nil, true)
  return {ids, bodies}
end)
