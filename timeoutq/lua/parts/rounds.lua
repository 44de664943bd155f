-- rounds: what the cleaners do for the hosts of a polite queue
-- PARTS ready
-- due_turns: hosts whose turn it is hand over tasks; gives how many tasks, and whether there may be more at once
local function due_turns(n)
  if not polite then return 0, false end
  local names = redis.call('ZRANGEBYSCORE', key('hosts'), '-inf', now, 'LIMIT', 0, n)
  if #names == 0 then return 0, false end
  sound()
  even_when_full()
  load_hosts(names)
  local handed, more = turn()
  return handed, more or #names == n
end

-- far_turns: a clock that stepped back leaves hosts whose turn is far away; only a blocked host keeps such a turn. Says whether
-- there was one that got an earlier turn
local function far_turns(n)
  if not polite then return false end
  local beyond = now + number(string.match(rules, '^%d+')) + 1000
  local far = redis.call('ZRANGEBYSCORE', key('hosts'), '(' .. beyond, '(+inf', 'WITHSCORES', 'LIMIT', 0, n)
  if #far == 0 then return false end
  local names = {}
  for i = 1, #far, 2 do names[#names + 1] = far[i] end
  even_when_full()
  load_hosts(names)
  turn()
  return redis.call('ZSCORE', key('hosts'), far[1]) ~= far[2]
end

-- converting: is `convert` to be called, because it has not come to its end?
local function converting()
  return redis.call('HEXISTS', meta, 'converting') == 1 or polite and string.sub(rules, -3) == 'off'
end
