-- grace: after a restart, a failover or a jump of the clock, live workers may extend first: for one lease, and for a
-- minute at most. Gives until when nothing is taken back.
local function grace(longest, jumped)
  local known = redis.call('HMGET', meta, 'run_id', 'grace_until')
  local run, ends, last = run_id(), number(known[2], 0), now + math.min(longest, 60000)
  if jumped or (known[1] and known[1] ~= run) then
    ends = last
    redis.call('HDEL', meta, 'grace_until') -- also makes a full server allow what follows, as even_when_full() does
    redis.call('HSET', meta, 'run_id', run, 'grace_until', ends)
    count_up(stats, jumped and 'clock_jumps' or 'restarts', 1)
  elseif ends > last then
    -- the clock stepped back during a grace, which must not become longer by that
    ends = last
    redis.call('HDEL', meta, 'grace_until')
    redis.call('HSET', meta, 'grace_until', ends)
  end
  return ends
end
