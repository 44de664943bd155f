-- beat: a worker gives a sign of life; workers that have given none for five minutes are struck off.
-- ARGS  1 call id, nonce or ''   2 age of the call, ms   3 worker   4 about, JSON or '': what the worker says of
--       itself, or empty when it leaves   5.. sections
-- SECTIONS  durations=numbers (bucket, count): how long its handlers ran since its last sign of life
-- Reply how many workers have given a sign of life within the last half minute, number
verb('beat', {flags = {'allow-oom'}}, function()
  local given, refused = sections(5, ' durations=numbers')
  if refused then return refused end
  if args[4] == '' then
    call('ZREM', key.workers, args[3])
    call('HDEL', key.worker_info, args[3])
  else
    call('ZADD', key.workers, now, args[3])
    call('HSET', key.worker_info, args[3], args[4])
  end
  if given.durations and not calls.was(args[1]) then
    -- two spans of ten minutes are kept: this one, and the one before it; and one sum of all, which only grows
    local span = math.floor(now / 600000)
    local this, other = named('durations' .. string.format('%d', span % 2)), named('durations' .. string.format('%d', (span + 1) % 2))
    if call('HGET', this, 'span') ~= whole(span) then
      call('DEL', this)
      call('HSET', this, 'span', whole(span))
    end
    -- a clock that stepped back leaves a span that lies in the future
    if number(call('HGET', other, 'span'), 0) > span then call('DEL', other) end
    for bucket, runs in pairs(given.durations) do
      count_up(this, bucket, runs)
      count_up(key.durations, bucket, runs)
    end
    calls.note(args[1])
  end
  local gone = call('ZRANGEBYSCORE', key.workers, '-inf', now - 300000, 'LIMIT', 0, 100)
  some('ZREM', key.workers, gone)
  some('HDEL', key.worker_info, gone)
  return leases.workers()
end)
