-- calls: the ids of the calls of the last minute, and some that are older and do not count: every sixteenth call clears
-- some of these away, more than come meanwhile, but not so many that other clients wait
local function note_call(call_id)
  redis.call('ZADD', calls, now, call_id)
  if string.sub(call_id, -1) == '0' then
    local old = redis.call('ZRANGEBYSCORE', calls, '-inf', now - 60000, 'LIMIT', 0, 200)
    if #old > 0 then redis.call('ZREM', calls, unpack(old)) end
  end
end

-- called_again: a call that was carried out before is remembered for another minute. This writes, so that a WAIT behind it waits for
-- what the first one wrote, too, whichever connection the first one came by
local function called_again(member)
  redis.call('ZREM', calls, member)
  redis.call('ZADD', calls, now, member)
end

local function was_called(call_id)
  local at = redis.call('ZSCORE', calls, call_id)
  return at and (moment(at) or 0) > now - 60000
end
