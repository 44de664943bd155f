-- prune: drop done tasks that are older, or more, than keep_done says; adopt tasks in progress without a lease; and give
-- hosts a turn again whose time lies farther ahead than anybody asked for.
-- KEYS  todos in_progress done leases owners lock done_at meta stats bell alarm
-- PARTS open wake log hostname polite
-- ARGV  1 call id   2 age of the call, ms   3 at most   4 cursor of the walk through in_progress
-- Reply {pruned, next cursor, adopted, 1 if there may be more to prune}
local n, keep = tonumber(ARGV[3]), settings[5] or 'forever'
local old, dated = {}, 0
if keep ~= 'forever' and keep ~= 'no' and redis.call('SCARD', done) > redis.call('ZCARD', done_at) then
  -- tasks that were done while all were kept have no time: it counts from now
  local times, some = {}, redis.call('SRANDMEMBER', done, n)
  for i = 1, #some do
    times[2 * i - 1], times[2 * i] = now, some[i]
  end
  redis.call('SREM', done, '') -- goes first: a full server allows it, and all that follows it
  dated = redis.call('ZADD', done_at, 'NX', unpack(times))
end
if keep == 'no' then
  old = redis.call('SRANDMEMBER', done, n)
elseif string.sub(keep, 1, 1) == 't' then
  old = redis.call('ZRANGEBYSCORE', done_at, '-inf', now - tonumber(string.sub(keep, 2)), 'LIMIT', 0, n)
elseif string.sub(keep, 1, 1) == 'n' then
  local over = redis.call('ZCARD', done_at) - tonumber(string.sub(keep, 2))
  if over > 0 then
    old = redis.call('ZRANGE', done_at, 0, math.min(over, n) - 1)
  end
end
if #old > 0 then
  redis.call('SREM', done, unpack(old))
  redis.call('ZREM', done_at, unpack(old))
  redis.call('HINCRBY', stats, 'pruned', #old)
end
-- nothing of ours leaves a task in progress without a deadline; a hand at redis-cli, or a script that was refused
-- half-way by an ACL, may. Its lease is what its lock still says; without a lock it gets one that nobody owns, of a
-- minute at most: the longest lease that the queue ever gave may be one of days. Then it comes back like any other.
local page, adopted = redis.call('SSCAN', in_progress, ARGV[4], 'COUNT', 200), 0
for i = 1, #page[2] do
  local id = page[2][i]
  if not redis.call('ZSCORE', leases, id) then
    local left = redis.call('PTTL', lock .. id)
    local deadline = now + (left > 0 and left or math.min(tonumber(settings[3] or 30000), 60000))
    redis.call('ZREM', leases, id) -- goes first: a full server allows it, and all that follows it
    redis.call('ZADD', leases, deadline, id)
    redis.call('HSETNX', owners, id, '?')
    rouse(deadline)
    adopted = adopted + 1
  end
end
if adopted > 0 then redis.call('HINCRBY', stats, 'adopted', adopted) end
local early = false
if polite then
  -- a clock that stepped back leaves hosts with a turn that is far away; one that is blocked keeps it
  local hosts = string.sub(meta, 1, -5) .. 'hosts'
  local beyond = now + tonumber(string.match(polite, '^%d+')) + 1000
  local far = redis.call('ZRANGEBYSCORE', hosts, '(' .. beyond, '(+inf', 'WITHSCORES', 'LIMIT', 0, n)
  if #far > 0 then
    local names = {}
    for i = 1, #far, 2 do names[#names + 1] = far[i] end
    redis.call('ZREM', hosts, '') -- goes first: a full server allows it, and all that follows it
    load_hosts(names)
    turn()
    early = tonumber(redis.call('ZSCORE', hosts, far[1])) ~= tonumber(far[2])
  end
end
return {#old, page[1], adopted, (#old == n or dated > n / 2 or early) and 1 or 0}
