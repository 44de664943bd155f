-- turns: when the next host has its turn on a polite queue, ms; nil while none waits for a time
local function next_turn()
  local hosts = prefix .. 'hosts'
  return moment(redis.call('ZRANGEBYSCORE', hosts, '-inf', '(+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
end
