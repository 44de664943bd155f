-- drained: is nothing ready, held, scheduled (before a time), or waiting for its host's turn?
-- ARGS  1 call id   2 age of the call, ms   3 before, ms or +inf: due time
--       4 cursor: where the walk goes on, 0 at first
--       5 counted, 0 or 1: 1 to tell the counters, too
-- Reply {drained 0 or 1, cursor, [{(counter, value) *}]}: 0 as the cursor: the answer is final. Usually this is one
--       atomic answer. Only when tasks wait, and no host will have a turn, each waiting task is asked why it waits,
--       which may take several calls
do
  -- look_at_waiting: when nothing is ready, held or scheduled: does each waiting task have a reason to wait? Gives the
  -- reply
  local function look_at_waiting(cursor)
    if call('EXISTS', key.waiting) == 0 then return {1, '0'} end
    -- on a queue that is no longer polite, nobody hands over the waiting tasks; on one that is about to end being so,
    -- they come
    if not polite or hosts.ends() then return {0, '0'} end
    local page = call('SSCAN', waiting, cursor, 'COUNT', 500)
    local ids = page[2]
    local names = #ids > 0 and ready.hosts_of(ids) or {}
    local known = hosts.load(names)
    for i = 1, #ids do
      local one = names[i] and known[names[i]]
      -- two reasons are accepted: the host's budget is used up, so the task will not run by itself; or the host has a
      -- turn later
      local turn_at = one and call('ZSCORE', key.hosts, one.name)
      local later = turn_at and turn_at ~= 'inf'
      local spent = one and one.budget and one.visits >= one.budget
      if not (turn_at and (later or spent) and call('ZSCORE', hosts.lane(one.name), ids[i])) then return {0, '0'} end
    end
    return {1, page[1]}
  end

  verb('drained', {flags = {'no-writes'}}, function()
    local before = '(' .. args[3]
    local busy = call('SCARD', key.todos) + call('SCARD', key.in_progress)
      -- a lease or an owner without a task in progress: somebody took the task away by hand, and it comes back
      + call('ZCARD', key.leases) + call('HLEN', key.owners)
      + (args[3] == '+inf' and call('ZCARD', key.scheduled) or call('ZCOUNT', key.scheduled, '-inf', before))
      + (polite and call('ZCOUNT', key.hosts, '-inf', before) or 0)
    local reply = busy > 0 and {0, '0'} or look_at_waiting(args[4])
    if args[5] == '1' then reply[3] = call('HGETALL', key.stats) end
    return reply
  end)
end
