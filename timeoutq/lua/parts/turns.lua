-- turns: when the next host has its turn, ms; nil while none waits for a time
local function next_turn()
  if not uses then return nil end
  return moment(redis.call('ZRANGEBYSCORE', key('hosts'), '-inf', '(+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
end

-- turn_counts: how many tasks wait, of how many hosts. Tasks are counted on every queue: a foreign hand may have deleted the
-- settings, and nothing that waits may be hidden
local function turn_counts()
  return redis.call('SCARD', key('waiting')), has('politeness') and redis.call('ZCARD', key('hosts')) or 0
end
