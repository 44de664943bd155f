-- why: all facts that decide whether a task is being worked on, read at one moment.
-- ARGS  1 call id   2 age of the call, ms   3 id   4 host: that of the id, or ''
-- Reply {{fact? any *}, {row? any *}?, paused 0 or 1, todos number, workers number, states, stranded 0 or 1, trace,
--       before? number, [durable number, replicas number]}: what inspect replies, what host replies or nil, how many
--       tasks are ready, how many workers are alive, the letters of all states that hold the task, 1 if the task waits
--       for a turn that its host will not have, what is left of a task that no state holds: lane or '', how many of its
--       host's tasks go before one that waits, or nil, and on a durable queue: how many replicas must confirm, and how
--       many were heard lately
do
  -- replicas: how many replicas have been heard within the last ten seconds; -1 where INFO is not allowed, or does not
  -- tell
  local function replicas()
    local info, count = try('INFO', 'replication'), 0
    if type(info) ~= 'string' or not string.find(info, 'connected_slaves:', 1, true) then return -1 end
    for lag in string.gmatch(info, 'slave%d+:[^\r\n]*state=online[^\r\n]*lag=(%d+)') do
      if tonumber(lag) <= 10 then count = count + 1 end
    end
    return count
  end

  verb('why', {flags = {'no-writes'}}, function()
    local id = args[3]
    local found, letters, row, stranded, trace, before = find.about(id), find.everywhere({id})[1], false, 0, '', nil
    local host = found[10]
    if host then
      hosts.load({host})
      row = hosts.row(host)
    end
    if letters == '' then
      -- a queue that has lost its turns tells no host: then the task's group names the host, or else the caller does
      if call('ZSCORE', hosts.lane(host or call('HGET', key.groups, id) or args[4]), id) then trace = 'lane' end
    elseif letters == 'w' then
      local turn_at = host and call('ZSCORE', key.hosts, host)
      before = turn_at and call('ZRANK', hosts.lane(host), id)
      if not before or hosts.late(host, turn_at) then stranded = 1 end
    end
    local reply = {
      found, row, setting.paused == '1' and 1 or 0, call('SCARD', key.todos),
      leases.workers(), letters, stranded, trace, before or false,
    }
    if has('durable') then reply[10], reply[11] = number(call('HGET', key.meta, 'durable'), 0), replicas() end
    return reply
  end)
end
