-- ring: something is ready; wake one idle claimer. The bell carries no task, so one stroke at a time is enough.
function wake.ring()
  if call('EXISTS', key.bell) == 0 then
    call('RPUSH', key.bell, '1')
  end
end

-- at: when the first cleaner looks again, ms, 0 if none has said so. A field that cannot be read wakes the cleaners too often, not too rarely
function wake.at()
  return number(setting.wake_at or 0, math.huge)
end

-- rouse: something will be due at `at`. Every cleaner looks again by `wake_at`; when that is too late, or was
-- promised by a clock that has been stepped forward since, wake them all; `rouses` says whether that is so.
function wake.rouses(at)
  local wake_at = wake.at()
  return at < wake_at or (wake_at > 0 and wake_at <= now)
end

function wake.rouse(at)
  if wake.rouses(at) then
    call('HSET', key.meta, 'wake_at', at)
    if type(try('XADD', key.alarm, 'MAXLEN', 1, '*', 'at', at)) == 'table' then
      -- a foreign hand gave the stream the last id that there is: it begins anew
      call('DEL', key.alarm)
      call('XADD', key.alarm, 'MAXLEN', 1, '*', 'at', at)
    end
    setting.wake_at = at
  end
end
