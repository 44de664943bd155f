-- hosts: a page of the hosts of a polite queue, those whose turn is next first.
-- KEYS  todos lock meta stats bell alarm
-- PARTS open ready
-- ARGV  1 call id   2 age of the call, ms   3 from which place on, number   4 how many, number
-- Reply {row any *}: rows as `host` replies them
-- Reply nil: the queue is not polite
if not polite then return false end
local names = redis.call('ZRANGE', key('hosts'), ARGV[3], ARGV[3] + ARGV[4] - 1)
load_hosts(names)
local rows = {}
for i = 1, #names do
  rows[i] = host_row(names[i])
end
return rows
