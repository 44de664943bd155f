-- log: keep the last error of a task, and the last fifty of the queue
local function log_error(id, message)
  local line, prefix = now .. ' ' .. message, string.sub(meta, 1, -5)
  redis.call('HSET', prefix .. 'errors', id, line)
  redis.call('LPUSH', prefix .. 'error_log', #id .. ' ' .. id .. line)
  redis.call('LTRIM', prefix .. 'error_log', 0, 49)
end
