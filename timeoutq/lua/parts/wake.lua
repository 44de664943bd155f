-- ring: something is ready; wake one idle claimer. The bell carries no task, so one stroke at a time is enough.
local function ring()
  if redis.call('EXISTS', bell) == 0 then
    redis.call('RPUSH', bell, '1')
  end
end

-- rouse: something will be due at `at`. Every cleaner looks again by `wake_at`; when that is too late, or was
-- promised by a clock that has been stepped forward since, wake them all; `rouses` says whether that is so.
local function rouses(at)
  return at < wake_at or (wake_at > 0 and wake_at <= now)
end

local function rouse(at)
  if rouses(at) then
    redis.call('HSET', meta, 'wake_at', at)
    if type(redis.pcall('XADD', alarm, 'MAXLEN', 1, '*', 'at', at)) == 'table' then
      -- a foreign hand gave the stream the last id that there is: it begins anew
      redis.call('DEL', alarm)
      redis.call('XADD', alarm, 'MAXLEN', 1, '*', 'at', at)
    end
    wake_at = at
  end
end
