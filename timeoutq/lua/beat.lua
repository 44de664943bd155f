-- beat: a worker gives a sign of life; workers that have given none for five minutes are struck off.
-- KEYS  workers worker_info lock meta calls
-- PARTS open sections calls
-- SOUND workers worker_info; calls durations0 durations1 durations
-- ARGV  1 call id, nonce or ''   2 age of the call, ms   3 worker   4 about, JSON or '': what the worker says of itself, or empty when it leaves
--       5.. sections
-- SECTIONS  durations=numbers (bucket, count): how long its handlers ran since its last sign of life
-- Reply how many workers have given a sign of life within the last minute, number
local given, refused = sections(5, ' durations=numbers')
if refused then return refused end
sound()
if ARGV[4] == '' then
  redis.call('ZREM', workers, ARGV[3])
  redis.call('HDEL', worker_info, ARGV[3])
else
  redis.call('HDEL', worker_info, ARGV[3]) -- also makes a full server allow what follows, as even_when_full() does
  redis.call('ZADD', workers, now, ARGV[3])
  redis.call('HSET', worker_info, ARGV[3], ARGV[4])
end
if given.durations and not was_called(ARGV[1]) then
  -- two spans of ten minutes are kept: this one, and the one before it; and one sum of all, which only grows
  local span = math.floor(now / 600000)
  local this, other = key('durations' .. string.format('%d', span % 2)), key('durations' .. string.format('%d', (span + 1) % 2))
  if redis.call('HGET', this, 'span') ~= string.format('%.0f', span) then
    redis.call('DEL', this)
    redis.call('HSET', this, 'span', string.format('%.0f', span))
  end
  -- a clock that stepped back leaves a span that lies in the future
  if number(redis.call('HGET', other, 'span'), 0) > span then redis.call('DEL', other) end
  for bucket, runs in pairs(given.durations) do
    count_up(this, bucket, runs)
    count_up(key('durations'), bucket, runs)
  end
  note_call(ARGV[1])
end
local gone = redis.call('ZRANGEBYSCORE', workers, '-inf', now - 300000, 'LIMIT', 0, 100)
if #gone > 0 then
  redis.call('ZREM', workers, unpack(gone))
  redis.call('HDEL', worker_info, unpack(gone))
end
return redis.call('ZCOUNT', workers, now - 60000, '+inf')
