-- convert: bring what is in the queue already in line with its politeness, one part per call.
-- KEYS  todos in_progress lock meta stats bell alarm
-- PARTS open switch ready
-- SOUND stats alarm todos in_progress
-- ARGV  1 call id   2 age of the call, ms   3 at most, number
-- Reply where it goes on: or `end`
-- Where it goes on is kept in `converting` of meta, so that anybody can go on, and any number may do so at once: a letter and a
-- cursor, 'p0' at first. p in_progress, so that what is held counts before any host hands over; t todos; q in_progress again, for
-- what was claimed meanwhile; h the hosts, by the new rules
local on = redis.call('HGET', meta, 'converting')
if not polite then
  -- a foreign hand has deleted the politeness
  if on then redis.call('HDEL', meta, 'converting') end
  return 'end'
end
if not on and string.sub(rules, -3) ~= 'off' then return 'end' end
sound()
if string.sub(rules, -3) == 'off' then
  local ids = redis.call('SRANDMEMBER', waiting, ARGV[3])
  local names = #ids > 0 and hosts_of(ids)
  for i = 1, #ids do
    redis.call('SMOVE', waiting, todos, ids[i])
    abandon(ids[i], names[i])
  end
  if #ids > 0 then
    ring()
    return 'p0'
  end
  dissolve()
  redis.call('HDEL', meta, 'politeness', 'converting')
  use('politeness', false)
  return 'end'
end
local state, cursor = string.match(on, '^([ptqh])(%d+)$')
if not state then state, cursor = 'p', '0' end
local after = {p = 't0', t = 'q0', q = 'h0', h = 'end'}
even_when_full()
local ids, some, some_names = {}, {}, {}
local page
if state == 'h' then
  page = redis.call('ZSCAN', key('hosts'), cursor, 'COUNT', ARGV[3])
  for i = 1, #page[2], 2 do
    local one = load_hosts({page[2][i]})[page[2][i]]
    if crowded(one) then recall(one) end
  end
else
  page = redis.call('SSCAN', state == 't' and todos or in_progress, cursor, 'COUNT', ARGV[3])
  ids = page[2]
end
local names = #ids > 0 and hosts_of(ids) or {}
load_hosts(names)
for i = 1, #ids do
  -- what a host handed over under the new rules holds a slot already
  if names[i] and not holds(names[i], ids[i]) then
    if state ~= 't' then
      occupy(names[i], ids[i])
    elseif redis.call('SMOVE', todos, waiting, ids[i]) == 1 then
      some[#some + 1], some_names[#some + 1] = ids[i], names[i]
    end
  end
end
arrive(some, some_names)
turn()
on = page[1] ~= '0' and state .. page[1] or after[state]
if on == 'end' then
  redis.call('HDEL', meta, 'converting')
else
  redis.call('HSET', meta, 'converting', on)
end
return on
