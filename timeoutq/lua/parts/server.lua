-- run_id: names this run of the server; it changes with a restart or a failover. Empty where INFO is not allowed.
local function run_id()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
end
