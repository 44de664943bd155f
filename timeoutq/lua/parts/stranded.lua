-- stranded: does any task wait, and will each that waits be handed over? This is what `drained` asks after it has found nothing
-- that is ready, held or scheduled
-- PARTS ready
-- turn_before: will a host have a turn before this time?
local function turn_before(before)
  return polite and redis.call('ZCOUNT', key('hosts'), '-inf', '(' .. before) > 0
end

-- lanes_cut_off: may there be lanes that no host's turn reaches? Each host that is known by anything has a turn; and who puts the
-- first task writes the schema
local function lanes_cut_off()
  local hosts = redis.call('ZCARD', key('hosts'))
  if not polite then return hosts > 0 or not schema and redis.call('EXISTS', stats) == 1 end
  local rests = redis.call('HLEN', key('resting')) - redis.call('HEXISTS', key('resting'), '')
  return hosts < math.max(redis.call('HLEN', key('slots')), rests, redis.call('HLEN', key('policies')))
    or hosts == 0 and redis.call('EXISTS', stats) == 1
end

-- look_for_lanes: look for lanes that no turn reaches, by the names of all keys; replies as `drained` does
local function look_for_lanes(on)
  local scan = redis.pcall -- a user who may not scan does without
  for _ = 1, 24 do
    local page = scan('SCAN', on, 'MATCH', key('host:*'), 'COUNT', 500)
    if page.err then return {1, '0'} end
    for i = 1, #page[2] do
      local name = string.sub(page[2][i], #key('host:') + 1)
      if not polite or not redis.call('ZSCORE', key('hosts'), name) then return {0, '0'} end
    end
    on = page[1]
    if on == '0' then return {1, '0'} end
  end
  return {1, 'k' .. on}
end

-- look_at_waiting: does each waiting task have a reason to wait? Replies as `drained` does
local function look_at_waiting(cursor)
  local on = string.match(cursor, '^k(%d+)$')
  if on then return look_for_lanes(on) end
  local ends = lanes_cut_off() and 'k0' or '0'
  if redis.call('EXISTS', key('waiting')) == 0 then return {1, ends} end
  -- on a queue that is no longer polite, nobody hands over the waiting tasks; on one that is about to end being so, they come
  if not polite or string.sub(rules, -3) == 'off' then return {0, '0'} end
  local page = redis.call('SSCAN', waiting, cursor, 'COUNT', 500)
  local ids = page[2]
  local names = #ids > 0 and hosts_of(ids) or {}
  local known = load_hosts(names)
  for i = 1, #ids do
    local one = names[i] and known[names[i]]
    -- two reasons to wait are accepted: the host's budget is used up, so the task will not run by itself; or the host has its turn
    -- after `before`
    local turn_at = one and redis.call('ZSCORE', key('hosts'), one.name)
    local later = turn_at and turn_at ~= 'inf'
    local spent = one and one.budget and one.visits >= one.budget
    if not (turn_at and (later or spent) and redis.call('ZSCORE', key('host:' .. one.name), ids[i])) then
      return {0, '0'}
    end
  end
  return {1, page[1] == '0' and ends or page[1]}
end
