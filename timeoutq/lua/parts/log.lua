-- log: keep the last error of a task, and the last fifty of the queue
local function log_error(id, message)
  local line = now .. ' ' .. message
  redis.call('HSET', errors, id, line)
  redis.call('LPUSH', error_log, #id .. ' ' .. id .. line)
  redis.call('LTRIM', error_log, 0, 49)
end
