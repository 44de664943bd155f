-- why: all facts that decide whether a task is being worked on, read at one moment.
-- ARGS  1 call id   2 age of the call, ms   3 id   4 host: that of the id, or ''
-- Reply {{fact? any *}, {row? any *}?, paused 0 or 1, todos number, workers number, states, stranded 0 or 1, trace, before? number, [durable number, replicas number]}: what
--       inspect replies, what host replies or nil, how many tasks are ready, how many workers are
--       alive, the letters of all states that hold the task, 1 if the task waits for a turn that its host will not have,
--       what is left of a task that no state holds: lane or '', how many of its host's tasks go before one that waits, or nil,
--       and on a durable queue: how many replicas must confirm, and how many were heard lately
verb('why', {flags = {'no-writes'}}, function()
  local found = find.about(args[3])
  local host, row = found[10], false
  if host then
    hosts.load({host})
    row = hosts.row(host)
  end
  local before
  local letters, stranded, trace = find.everywhere({args[3]})[1], 0, ''
  if letters == '' then
    -- a queue that has lost its turns tells no host: then the task's group names the host, or else the caller does
    local name = host or call('HGET', key.groups, args[3]) or args[4]
    if call('ZSCORE', named('host:' .. name), args[3]) then trace = 'lane' end
  end
  if letters == 'w' then
    local turn_at = host and call('ZSCORE', key.hosts, host)
    before = turn_at and call('ZRANK', named('host:' .. host), args[3])
    if not before or hosts.late(host, turn_at) then stranded = 1 end
  end
  local reply = {
    found, row, setting.paused == '1' and 1 or 0, call('SCARD', key.todos),
    call('ZCOUNT', key.workers, now - 60000, '+inf'), letters, stranded, trace, before or false,
  }
  if has('durable') then
    reply[10], reply[11] = number(call('HGET', key.meta, 'durable'), 0), server.replicas() or -1
  end
  return reply
end)
