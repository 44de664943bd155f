-- wake: how idle clients hear that there is something to do
-- bell   LIST: something is ready; one stroke at a time wakes one idle claimer, and carries no task
-- alarm  STREAM: all cleaners are to look earlier than they have promised in wake_at of meta

-- ring: have a stroke in the bell; `silent`: it is known to have none
function wake.ring(silent)
  if silent or call('EXISTS', key.bell) == 0 then call('RPUSH', key.bell, '1') end
end

-- at: when the first cleaner looks again, ms, 0 if none has said so; never, if the field cannot be read
function wake.at()
  return number(setting.wake_at or 0, math.huge)
end

-- rouse: something will be due: wake the cleaners if wake_at is too late, is missing, or is of a clock that has jumped
function wake.rouse(at)
  local wake_at = wake.at()
  if at < wake_at or wake_at <= now then
    call('HSET', key.meta, 'wake_at', at)
    call('XADD', key.alarm, 'MAXLEN', 1, '*', 'at', at)
    setting.wake_at = at
  end
end

-- first: when the first member of a sorted set of times is due, ms; nil for none
function wake.first(name)
  return moment(call('ZRANGE', name, 0, 0, 'WITHSCORES')[2])
end
