-- replicas: how many replicas the server sends its writes to; nil where INFO is not allowed
local function replicas()
  local info = redis.pcall('INFO', 'replication')
  if type(info) ~= 'string' or not string.find(info, 'connected_slaves:', 1, true) then return nil end
  return select(2, string.gsub(info, 'state=online', ''))
end

-- run_id: names this run of the server; it changes with a restart or a failover. Empty where INFO is not allowed.
local function run_id()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
end
