-- ages: how many tasks are done, and since when; the rest of the door that `done` begins, for those who look and clean up
local function done_count()
  if compact then return done_known() end
  return redis.call('SCARD', done)
end

local function done_times(ids)
  return redis.call('ZMSCORE', done_at, unpack(ids))
end

-- keep: tasks that are in no state are done, each since its time; false is now
local function keep(ids, times)
  if compact then return remember(ids) end
  redis.call('SADD', done, unpack(ids))
  if not dates_done then return end
  local rows = {}
  for i = 1, #ids do
    rows[2 * i - 1], rows[2 * i] = times[i] or now, ids[i]
  end
  redis.call('ZADD', done_at, unpack(rows))
end

-- date: a task that was done while all tasks were kept has no time: its age counts from now. Gives where the walk through the
-- done tasks goes on, and whether tasks without a time are left
local function date(n, cursor)
  if not dates_done or redis.call('SCARD', done) <= redis.call('ZCARD', done_at) then return '0', false end
  local page, times = redis.call('SSCAN', done, cursor, 'COUNT', n), {}
  for i = 1, #page[2] do
    times[2 * i - 1], times[2 * i] = now, page[2][i]
  end
  even_when_full()
  if #times > 0 then redis.call('ZADD', done_at, 'NX', unpack(times)) end
  return page[1], redis.call('SCARD', done) > redis.call('ZCARD', done_at)
end

-- outdated: n tasks at most that keep_done does not keep; a setting that cannot be read keeps all
local function outdated(n)
  local kind, most = string.sub(keep_done, 1, 1), number(string.sub(keep_done, 2))
  if keep_done == 'no' then return redis.call('SRANDMEMBER', done, n) end
  if most and kind == 't' then return redis.call('ZRANGEBYSCORE', done_at, '-inf', now - most, 'LIMIT', 0, n) end
  local over = most and kind == 'n' and redis.call('ZCARD', done_at) - most or 0
  return over > 0 and redis.call('ZRANGE', done_at, 0, math.min(over, n) - 1) or {}
end

-- pack: on a queue with compact done, a foreign hand has added ids to the set `done`, or these were done while a foreign hand had damaged
-- `uses`: those that are in no state become fingerprints
local function pack(ids, states)
  local some = {}
  for i = 1, #ids do
    if states[i] == '' then some[#some + 1] = ids[i] end
  end
  remember(some)
  redis.call('SREM', done, unpack(ids))
end
