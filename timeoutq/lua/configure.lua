-- configure: write settings that all clients of the queue share; pause and resume are such settings.
-- KEYS  meta bell alarm
-- PARTS open wake
-- ARGV  1 call id   2 age of the call, ms   3.. (name, value) *
-- Reply 1
for i = 3, #ARGV, 2 do
  redis.call('HDEL', meta, ARGV[i]) -- goes first: a full server allows it, and all that follows it
  redis.call('HSET', meta, ARGV[i], ARGV[i + 1])
  if ARGV[i] == 'paused' and ARGV[i + 1] == '0' then ring() end
end
redis.call('HSETNX', meta, 'schema', '1')
return 1
