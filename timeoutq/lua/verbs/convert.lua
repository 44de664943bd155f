-- convert: bring what is in the queue already in line with its politeness, one part per call.
-- ARGS  1 call id   2 age of the call, ms   3 at most, number
-- Reply where it goes on: or `end`
-- Where it goes on is kept in `converting` of meta, so that anybody can go on, and any number may do so at once: a letter and a
-- cursor, 'p0' at first. p in_progress, so that what is held counts before any host hands over; t todos; q in_progress again, for
-- what was claimed meanwhile; h the hosts, by the new rules
verb('convert', {flags = {'allow-oom'}}, function()
  local on = call('HGET', key.meta, 'converting')
  if not polite then
    -- a foreign hand has deleted the politeness
    if on then call('HDEL', key.meta, 'converting') end
    return 'end'
  end
  if not on and string.sub(rules, -3) ~= 'off' then return 'end' end
  if string.sub(rules, -3) == 'off' then
    local ids = call('SRANDMEMBER', waiting, args[3])
    local names = #ids > 0 and ready.hosts_of(ids)
    for i = 1, #ids do
      call('SMOVE', waiting, key.todos, ids[i])
      hosts.abandon(ids[i], names[i])
    end
    if #ids > 0 then
      wake.ring()
      return 'p0'
    end
    hosts.dissolve()
    call('HDEL', key.meta, 'politeness', 'converting')
    settings.use('politeness', false)
    return 'end'
  end
  local state, cursor = string.match(on, '^([ptqh])(%d+)$')
  if not state then state, cursor = 'p', '0' end
  local after = {p = 't0', t = 'q0', q = 'h0', h = 'end'}
  local ids, some, some_names = {}, {}, {}
  local page
  if state == 'h' then
    page = call('ZSCAN', key.hosts, cursor, 'COUNT', args[3])
    for i = 1, #page[2], 2 do
      local one = hosts.load({page[2][i]})[page[2][i]]
      if hosts.crowded(one) then hosts.recall(one) end
    end
  else
    page = call('SSCAN', state == 't' and key.todos or key.in_progress, cursor, 'COUNT', args[3])
    ids = page[2]
  end
  local names = #ids > 0 and ready.hosts_of(ids) or {}
  hosts.load(names)
  for i = 1, #ids do
    -- what a host handed over under the new rules holds a slot already
    if names[i] and not hosts.holds(names[i], ids[i]) then
      if state ~= 't' then
        hosts.occupy(names[i], ids[i])
      elseif call('SMOVE', key.todos, waiting, ids[i]) == 1 then
        some[#some + 1], some_names[#some + 1] = ids[i], names[i]
      end
    end
  end
  ready.arrive(some, some_names)
  ready.turn()
  on = page[1] ~= '0' and state .. page[1] or after[state]
  if on == 'end' then
    call('HDEL', key.meta, 'converting')
  else
    call('HSET', key.meta, 'converting', on)
  end
  return on
end)
