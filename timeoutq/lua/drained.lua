-- drained: is nothing ready, held, scheduled (before a time), or waiting for its host's turn?
-- KEYS  todos in_progress scheduled leases meta stats bell alarm
-- PARTS open wake log hostname polite
-- ARGV  1 call id   2 age of the call, ms   3 before: due time, ms, or +inf
--       4 where the walk goes on, 0 at first: a cursor of the waiting tasks, or k and a cursor of all keys
-- Reply {1 or 0, where to go on; 0 if the answer is final}. Usually this is one atomic answer. Only when tasks wait, and no host
--       will have a turn, each waiting task is asked why it waits, which may take several calls. Where a foreign hand has deleted
--       the turns of hosts, or the politeness, lanes may be left that only their own names tell of: these are looked for
local busy = redis.call('SCARD', todos) + redis.call('SCARD', in_progress)
  -- a lease or an owner without a task in progress: a foreign hand took the task away, and the task comes back
  + redis.call('ZCARD', leases) + redis.call('HLEN', prefix .. 'owners') + (ARGV[3] == '+inf' and redis.call('ZCARD', scheduled) or redis.call('ZCOUNT', scheduled, '-inf', '(' .. ARGV[3]))
if polite then busy = busy + redis.call('ZCOUNT', prefix .. 'hosts', '-inf', '(' .. ARGV[3]) end
if busy > 0 then return {0, '0'} end
-- each host that is known by anything has a turn; and who puts the first task writes the schema
local hosts = redis.call('ZCARD', prefix .. 'hosts')
local cut_off
if polite then
  cut_off = hosts < math.max(redis.call('HLEN', prefix .. 'slots'), redis.call('HLEN', prefix .. 'resting'), redis.call('HLEN', prefix .. 'policies'))
    or hosts == 0 and redis.call('EXISTS', stats) == 1
else
  cut_off = hosts > 0 or not schema and redis.call('EXISTS', stats) == 1
end
local on = string.match(ARGV[4], '^k(%d+)$')
if on then
  local scan = redis.pcall -- a user who may not scan does without
  for _ = 1, 24 do
    local page = scan('SCAN', on, 'MATCH', prefix .. 'host:*', 'COUNT', 500)
    if page.err then return {1, '0'} end
    for i = 1, #page[2] do
      local name = string.sub(page[2][i], #prefix + 6)
      if not polite or not redis.call('ZSCORE', prefix .. 'hosts', name) then return {0, '0'} end
    end
    on = page[1]
    if on == '0' then return {1, '0'} end
  end
  return {1, 'k' .. on}
end
local ends = cut_off and 'k0' or '0'
if redis.call('EXISTS', prefix .. 'waiting') == 0 then return {1, ends} end
-- on a queue that is no longer polite, nobody hands over the waiting tasks; on one that is about to end being so, they come
if not polite or string.sub(polite, -3) == 'off' then return {0, '0'} end
local page = redis.call('SSCAN', waiting, ARGV[4], 'COUNT', 500)
local ids = page[2]
local names = #ids > 0 and hosts_of(ids) or {}
local known = load_hosts(names)
for i = 1, #ids do
  local one = names[i] and known[names[i]]
  -- two reasons to wait are accepted: the host's budget is used up, so the task will not run by itself; or the host has its turn
  -- after `before`
  local turn_at = one and redis.call('ZSCORE', prefix .. 'hosts', one.name)
  local later = turn_at and turn_at ~= 'inf'
  local spent = one and one.budget and one.visits >= one.budget
  if not (turn_at and (later or spent) and redis.call('ZSCORE', prefix .. 'host:' .. one.name, ids[i])) then
    return {0, '0'}
  end
end
return {1, page[1] == '0' and ends or page[1]}
