-- open: the one clock reading of the script, the settings, and the check that we understand this queue
local unpack = table.unpack or unpack
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local settings = redis.call('HMGET', meta, 'schema', 'paused', 'lease_ms', 'wake_at', 'keep_done', 'max_crashes',
  'politeness')
if settings[1] and settings[1] ~= '2' then
  return {err = 'SCHEMA the queue has schema ' .. settings[1]}
end
local wake_at = tonumber(settings[4] or 0)
