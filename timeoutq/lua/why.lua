-- why: all that decides whether a task is being worked on now, at one moment.
-- KEYS  todos in_progress done failed scheduled leases owners payload attempts crashes errors workers done_at lock meta stats bell alarm
-- PARTS open locks about where
-- ARGV  1 call id   2 age of the call, ms   3 id   4 the host of the id, or ''
-- Reply {what inspect replies, what host replies or nil, 1 if paused, ready tasks, workers alive, letters of all states that
--       hold it, 1 if it waits where nobody will hand it over, what is left of it in no state: lane, lock or ''}
local found = about(ARGV[3])
local row = false
if found[10] then
  load_hosts({found[10]})
  row = host_row(found[10])
end
local letters, stranded, trace = where_all({ARGV[3]})[1], 0, ''
if letters == '' then
  -- the queue may have lost its turns, and then only the caller knows the host
  local name = found[10] or redis.call('HGET', key('groups'), ARGV[3]) or ARGV[4]
  if redis.call('ZSCORE', key('host:' .. name), ARGV[3]) then
    trace = 'lane'
  elseif redis.call('EXISTS', locks_of({ARGV[3]})[1]) == 1 then
    trace = 'lock'
  end
end
if letters == 'w' then
  local name = found[10]
  local turn_at = name and redis.call('ZSCORE', key('hosts'), name)
  if not (turn_at and redis.call('ZSCORE', key('host:' .. name), ARGV[3])) or late(name, turn_at) then stranded = 1 end
end
return {
  found, row, paused and 1 or 0, redis.call('SCARD', todos),
  redis.call('ZCOUNT', workers, now - 60000, '+inf'), letters, stranded, trace,
}
