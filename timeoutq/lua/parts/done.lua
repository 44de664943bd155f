-- done: the door to the tasks that are done. Only this part and `ages` read or write the set `done`, and `done_at`: when each
-- task was done, which is kept only if keep_done is a time or a number of tasks. On a queue with keep_done "compact", which keeps no
-- ids, the functions have the same names, and are those of the room `compact`. This is decided once, when the script begins
-- PARTS priority lasting
-- ROOMS compact
-- is_done       is this task done?
-- done_among    which of these tasks are done, as a 1 for each task that is
-- done_sound    fail on keys of a foreign type before anything is written; `early` if there is anything to write before finish(), undo()
--               or remember(). It is nil where finish() itself fails on such a key
-- finish        make tasks of the set `from` done: each ids[i] where which[i] is true. Gives those that were in `from`; for the others,
--               which[i] becomes false
-- undo          these tasks are no longer done
-- revive        move a done task into another set; undate() forgets when it was done. Gives 1, or 0 for a task that is not done
-- look_at       how a room reads a set of its own: redis.call, or redis.pcall where a set of a foreign type counts as empty
-- remember, done_known, look_through, mend_seen   what only the room has; nil elsewhere
local compact = uses and has('compact')
local dates_done = keep_done ~= 'forever' and keep_done ~= 'no' and keep_done ~= 'compact'
local is_done, done_among, done_sound, finish, undo, revive, remember, done_known, look_through, mend_seen
local look_at = redis.call

-- undate: forget when these tasks were done. Also makes a full server allow what follows, as even_when_full() does
local function undate(ids)
  redis.call('ZREM', done_at, unpack(ids))
  if unlast then unlast(ids) end
end

if not compact then
  function is_done(id)
    return redis.call('SISMEMBER', done, id) == 1
  end

  function done_among(ids)
    if #ids > 8 and redis.call('EXISTS', done) == 0 then return {} end
    return redis.call('SMISMEMBER', done, unpack(ids))
  end

  function finish(from, ids, which)
    local call, keeps, ended = quiet, keep_done ~= 'no', {}
    for i = 1, #ids do
      if which[i] then
        if (keeps and call('SMOVE', from, done, ids[i]) or not keeps and call('SREM', from, ids[i])) == 1 then
          ended[#ended + 1] = ids[i]
        else
          which[i] = false
        end
      end
    end
    if moved then moved(ended, from, keeps and done) end
    if forget_priorities and not keeps and #ended > 0 then forget_priorities(ended) end
    if dates_done and #ended > 0 then
      local times = {}
      for i = 1, #ended do
        times[2 * i - 1], times[2 * i] = now, ended[i]
      end
      call('ZADD', done_at, unpack(times))
    end
    return ended
  end

  function undo(ids)
    redis.call('SREM', done, unpack(ids))
  end

  function revive(id, into)
    return redis.call('SMOVE', done, into, id)
  end
end

-- may_finish: fail on a key of a foreign type, for a script that writes something before finish()
local function may_finish()
  if not compact then redis.call('SCARD', done) end
end

-- finish_bare: finish() where the tasks at some places leave no id in `done`
local function finish_bare(from, ids, which, places)
  local bare, is_bare, kept = {}, {}, {}
  for i = 1, #ids do kept[i] = which[i] end
  for _, place in ipairs(places) do
    local at = tonumber(place) or 0
    if kept[at] then is_bare[at], kept[at] = true, false end
  end
  -- goes first: it fails on keys of a foreign type before it writes
  local ended = finish(from, ids, kept)
  for i = 1, #ids do
    if is_bare[i] then
      which[i] = redis.call('SREM', from, ids[i]) == 1
      if which[i] then bare[#bare + 1] = ids[i] end
    else
      which[i] = kept[i]
    end
  end
  if forget_priorities and #bare > 0 then forget_priorities(bare) end
  for i = 1, #bare do ended[#ended + 1] = bare[i] end
  return ended
end

-- finish_lasting: finish_bare() where other tasks stay in `done` for a time, whatever keep_done says: lasting[i] is for how many ms
local function finish_lasting(from, ids, which, places, lasting)
  local rows, kept, stays, ended = {}, {}, {}, {}
  for i = 1, #ids do
    stays[i] = which[i] and lasting[i] and true
    kept[i] = which[i] and not stays[i]
    if stays[i] then rows[#rows + 1], rows[#rows + 2] = now + tonumber(lasting[i]), ids[i] end
  end
  -- goes before the tasks: one that is done without its time would block its id for ever
  if #rows > 0 then let_last(rows) end
  for i = 1, #ids do
    if stays[i] then
      which[i] = redis.call('SMOVE', from, done, ids[i]) == 1
      if which[i] then ended[#ended + 1] = ids[i] end
    end
  end
  local others = finish_bare(from, ids, kept, places)
  for i = 1, #ids do
    if not stays[i] then which[i] = kept[i] end
  end
  for i = 1, #others do ended[#ended + 1] = others[i] end
  return ended
end
