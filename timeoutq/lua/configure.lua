-- configure: write settings that all clients of the queue share; pause and resume are such settings.
-- KEYS  meta bell alarm
-- PARTS open wake
-- SOUND alarm; bell
-- ARGV  1 call id   2 age of the call, ms   3.. (name, value) *
-- Reply 2 when the politeness has changed, and `convert` is to be called; else 1
local reply = 1
for i = 3, #ARGV, 2 do
  local name, value = ARGV[i], ARGV[i + 1]
  if name == 'politeness' then
    local was = politeness
    -- rules that change keep everything where it is; who has just begun, or ended, waits for the conversion
    if value == 'off' and was then
      value, reply = '0 1000000 off', 2
    elseif value == 'off' and redis.call('EXISTS', prefix .. 'waiting') == 1 then
      -- a foreign hand has deleted the settings of a polite queue: its waiting tasks are let go
      value, reply = '0 1000000 off', 2
    elseif value == 'off' then
      value = nil
    elseif was == value then
      -- a conversion that has not ended goes on where it is
      value = nil
      if redis.call('HEXISTS', meta, 'converting') == 1 then reply = 2 end
    else
      reply = 2
    end
    if reply == 2 and value then
      redis.call('HDEL', meta, 'converting')
      redis.call('HSET', meta, 'converting', 'p0')
    end
  end
  if value then
    redis.call('HDEL', meta, name) -- also makes a full server allow what follows, as even_when_full() does
    redis.call('HSET', meta, name, value)
  end
  if name == 'paused' and value == '0' then ring() end
end
redis.call('HSETNX', meta, 'schema', '2')
return reply
