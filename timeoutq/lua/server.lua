-- replicas: how many replicas have been heard within the last ten seconds; nil where INFO is not allowed, or does not tell
function server.replicas()
  local info, count = try('INFO', 'replication'), 0
  if type(info) ~= 'string' or not string.find(info, 'connected_slaves:', 1, true) then return nil end
  for lag in string.gmatch(info, 'slave%d+:[^\r\n]*state=online[^\r\n]*lag=(%d+)') do
    if tonumber(lag) <= 10 then count = count + 1 end
  end
  return count
end

-- run_id: names this run of the server; it changes with a restart or a failover. Empty where INFO is not allowed.
function server.run_id()
  local info = try('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
end
