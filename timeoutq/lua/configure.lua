-- configure: write settings that all clients of the queue share; pause and resume are such settings.
-- KEYS  lock meta bell alarm
-- PARTS open mark wake switch
-- SOUND alarm; bell
-- ARGV  1 call id   2 age of the call, ms   3.. (name, value) *: a name that ends in `?` is written only where the queue has
--       no such setting: of two clients that write it at the same moment, the first counts.
--       keep_done "compact" comes with a salt, as `compact SALT`
-- Reply what to do next, number: 2 when `convert` is to be called, because the tasks in the queue have to follow the settings; else 1
local reply, kept = 1, {}
for i = 3, #ARGV, 2 do
  local once = string.match(ARGV[i], '^(.*)%?$')
  kept[i] = once and redis.call('HEXISTS', meta, once) == 1
  local refused = not kept[i] and cannot_switch(once or ARGV[i], ARGV[i + 1])
  if refused then return refused end
end
for i = 3, #ARGV, 2 do
  local name, value, convert = string.match(ARGV[i], '^(.*)%?$') or ARGV[i], nil, nil
  if not kept[i] then value, convert = switch(name, ARGV[i + 1]) end
  if convert then reply = 2 end
  if value then
    redis.call('HDEL', meta, name) -- also makes a full server allow what follows, as even_when_full() does
    redis.call('HSET', meta, name, value)
  end
  if name == 'paused' and value == '0' then ring() end
end
if not schema then redis.call('HSETNX', meta, 'schema', '3') end
mark()
return reply
