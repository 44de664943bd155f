-- why: all facts that decide whether a task is being worked on, read at one moment.
-- KEYS  todos in_progress done failed scheduled leases owners payload attempts crashes errors workers done_at lock meta stats bell alarm
-- PARTS open locks about where server
-- ARGV  1 call id   2 age of the call, ms   3 id   4 host: that of the id, or ''
-- Reply {{fact? any *}, {row? any *}?, paused 0 or 1, todos number, workers number, states, stranded 0 or 1, trace, before? number, [durable number, replicas number]}: what
--       inspect replies, what host replies or nil, how many tasks are ready, how many workers are
--       alive, the letters of all states that hold the task, 1 if the task waits for a turn that its host will not have,
--       what is left of a task that no state holds: lane, lock or '', how many of its host's tasks go before one that waits, or nil,
--       and on a durable queue: how many replicas must confirm, and how many were heard lately
local found = about(ARGV[3])
local host, row = found[10], false
if host then
  load_hosts({host})
  row = host_row(host)
end
local before
local letters, stranded, trace = where_all({ARGV[3]})[1], 0, ''
if letters == '' then
  -- a queue that has lost its turns tells no host: then the task's group names the host, or else the caller does
  local name = host or redis.call('HGET', key('groups'), ARGV[3]) or ARGV[4]
  if redis.call('ZSCORE', key('host:' .. name), ARGV[3]) then
    trace = 'lane'
  elseif redis.call('EXISTS', locks_of({ARGV[3]})[1]) == 1 then
    trace = 'lock'
  end
end
if letters == 'w' then
  local turn_at = host and redis.call('ZSCORE', key('hosts'), host)
  before = turn_at and redis.call('ZRANK', key('host:' .. host), ARGV[3])
  if not before or late(host, turn_at) then stranded = 1 end
end
local reply = {
  found, row, paused and 1 or 0, redis.call('SCARD', todos),
  redis.call('ZCOUNT', workers, now - 60000, '+inf'), letters, stranded, trace, before or false,
}
if has('durable') then
  reply[10], reply[11] = number(redis.call('HGET', meta, 'durable'), 0), replicas() or -1
end
return reply
