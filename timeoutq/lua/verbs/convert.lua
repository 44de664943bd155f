-- convert: bring what is in the queue already in line with its politeness, one part per call.
-- ARGS  1 call id   2 age of the call, ms   3 at most, number
-- Reply where it goes on: or `end`
-- Where it goes on is kept in `converting` of meta, so that anybody can go on, and any number may do so at once: a
-- letter and a cursor, 'p0' at first. p in_progress, so that what is held counts before any host hands over; t todos; q
-- in_progress again, for what was claimed meanwhile; h the hosts, by the new rules
do
  local after = {p = 't0', t = 'q0', q = 'h0', h = 'end'}

  -- let_go: some waiting tasks are ready, for the queue is no longer polite; with the last one, its hosts are forgotten
  local function let_go(most)
    local ids = call('SRANDMEMBER', waiting, most)
    local names = #ids > 0 and ready.hosts_of(ids)
    for i = 1, #ids do
      hosts.abandon(ids[i], names[i]) -- goes first: a call that is refused half-way leaves no task in a lane that nobody reads
      call('SMOVE', waiting, key.todos, ids[i])
    end
    if #ids > 0 then
      wake.ring()
      return 'p0'
    end
    call('UNLINK', key.hosts, key.slots, key.places, key.resting, key.host_failures, key.policies)
    call('HDEL', key.meta, 'politeness', 'converting')
    settings.use('politeness', false)
    return 'end'
  end

  -- place: these tasks have places, or wait for one: what a host handed over under the new rules has one already
  local function place(ids, from_todos)
    local names, back, back_names = #ids > 0 and ready.hosts_of(ids) or {}, {}, {}
    hosts.load(names)
    for i = 1, #ids do
      if names[i] and not hosts.holds(names[i], ids[i]) then
        if not from_todos then
          hosts.occupy(names[i], ids[i])
        elseif call('SMOVE', key.todos, waiting, ids[i]) == 1 then
          back[#back + 1], back_names[#back + 1] = ids[i], names[i]
        end
      end
    end
    ready.arrive(back, back_names)
  end

  verb('convert', {flags = {'allow-oom'}}, function()
    local on = call('HGET', key.meta, 'converting')
    if hosts.ends() then return let_go(args[3]) end
    if not polite and on then call('HDEL', key.meta, 'converting') end -- somebody has deleted the politeness by hand
    if not polite or not on then return 'end' end
    local state, cursor = string.match(on, '^([ptqh])(%d+)$')
    local page
    if state == 'h' then
      page = call('ZSCAN', key.hosts, cursor, 'COUNT', args[3])
      for _, name in ipairs(every_other(page[2])) do
        local one = hosts.get(name)
        if hosts.crowded(one) or (one.next_ms or 0) > now then hosts.recall(one) end
      end
    else
      page = call('SSCAN', state == 't' and key.todos or key.in_progress, cursor, 'COUNT', args[3])
      place(page[2], state == 't')
    end
    ready.turn()
    on = page[1] ~= '0' and state .. page[1] or after[state]
    if on == 'end' then
      call('HDEL', key.meta, 'converting')
    else
      call('HSET', key.meta, 'converting', on)
    end
    return on
  end)
end
