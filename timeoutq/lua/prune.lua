-- prune: drop the done tasks that keep_done does not keep: those that are too old, or too many. Also give a turn again to hosts
-- whose turn lies farther ahead than their delay allows.
-- KEYS  todos done done_at meta stats bell alarm
-- PARTS open wake log hostname polite
-- SOUND stats alarm todos done done_at
-- ARGV  1 call id   2 age of the call, ms   3 at most   4 where the dating of done tasks goes on, 0 at first
-- Reply {pruned, where the dating goes on, 1 if there may be more to prune, 1 if `convert` has not come to its end}
local n, cursor = tonumber(ARGV[3]), '0'
local old, undated, most = {}, false, number(string.sub(keep_done, 2)) -- a setting that cannot be read keeps all
sound()
if keep_done ~= 'forever' and keep_done ~= 'no' and redis.call('SCARD', done) > redis.call('ZCARD', done_at) then
  -- a task that was done while all tasks were kept has no time: its age counts from now
  local page, times = redis.call('SSCAN', done, ARGV[4], 'COUNT', n), {}
  for i = 1, #page[2] do
    times[2 * i - 1], times[2 * i] = now, page[2][i]
  end
  even_when_full()
  if #times > 0 then redis.call('ZADD', done_at, 'NX', unpack(times)) end
  cursor, undated = page[1], redis.call('SCARD', done) > redis.call('ZCARD', done_at)
end
if keep_done == 'no' then
  old = redis.call('SRANDMEMBER', done, n)
elseif most and string.sub(keep_done, 1, 1) == 't' then
  old = redis.call('ZRANGEBYSCORE', done_at, '-inf', now - most, 'LIMIT', 0, n)
elseif most and string.sub(keep_done, 1, 1) == 'n' then
  local over = redis.call('ZCARD', done_at) - most
  if over > 0 then
    old = redis.call('ZRANGE', done_at, 0, math.min(over, n) - 1)
  end
end
if #old > 0 then
  redis.call('SREM', done, unpack(old))
  redis.call('ZREM', done_at, unpack(old))
  count_up(stats, 'pruned', #old)
end
local early = false
if polite then
  -- a clock that stepped back leaves hosts whose turn is far away; only a blocked host keeps such a turn
  local hosts = prefix .. 'hosts'
  local beyond = now + number(string.match(polite, '^%d+')) + 1000
  local far = redis.call('ZRANGEBYSCORE', hosts, '(' .. beyond, '(+inf', 'WITHSCORES', 'LIMIT', 0, n)
  if #far > 0 then
    local names = {}
    for i = 1, #far, 2 do names[#names + 1] = far[i] end
    even_when_full()
    load_hosts(names)
    turn()
    early = redis.call('ZSCORE', hosts, far[1]) ~= far[2]
  end
end
local converting = redis.call('HEXISTS', meta, 'converting') == 1 or polite and string.sub(polite, -3) == 'off'
return {#old, cursor, (#old == n or undated or early) and 1 or 0, converting and 1 or 0}
