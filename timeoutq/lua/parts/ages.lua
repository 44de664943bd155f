-- ages: how many tasks are done, and since when; the rest of the door that `done` begins, for those who look and clean up
local function done_count()
  if compact then return done_known() end
  return redis.call('SCARD', done)
end

local function done_times(ids)
  return redis.call('ZMSCORE', done_at, unpack(ids))
end

-- keep: tasks that are in no state are done, each since its time; false is now. ends[i] is until when ids[i] blocks its id; nil or false:
-- keep_done says so
local function keep(ids, times, ends)
  if compact then return remember(ids) end
  local rows, lasting = {}, {}
  for i = 1, #ids do
    if ends and ends[i] then
      lasting[#lasting + 1], lasting[#lasting + 2] = ends[i], ids[i]
    else
      rows[#rows + 1], rows[#rows + 2] = times[i] or now, ids[i]
    end
  end
  if #lasting > 0 then let_last(lasting) end
  redis.call('SADD', done, unpack(ids))
  if dates_done and #rows > 0 then redis.call('ZADD', done_at, unpack(rows)) end
end

-- dated_count: how many done tasks have a time
local function dated_count()
  return redis.call('ZCARD', done_at) + (has('until') and redis.call('ZCARD', key('done_until')) or 0)
end

-- date: a task that was done while all tasks were kept has no time: its age counts from now. Gives where the walk through the
-- done tasks goes on, and whether tasks without a time are left
local function date(n, cursor)
  if not dates_done or redis.call('SCARD', done) <= dated_count() then return '0', false end
  local page, times = redis.call('SSCAN', done, cursor, 'COUNT', n), {}
  local ids = not_lasting(page[2])
  for i = 1, #ids do
    times[2 * i - 1], times[2 * i] = now, ids[i]
  end
  even_when_full()
  if #times > 0 then redis.call('ZADD', done_at, 'NX', unpack(times)) end
  return page[1], redis.call('SCARD', done) > dated_count()
end

-- outdated: n tasks at most that keep_done does not keep; a setting that cannot be read keeps all
local function outdated(n)
  local kind, most = string.sub(keep_done, 1, 1), number(string.sub(keep_done, 2))
  if keep_done == 'no' then return not_lasting(redis.call('SRANDMEMBER', done, n)) end
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
