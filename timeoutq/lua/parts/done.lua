-- done: the door to the tasks that are done. Only this part and `ages` read or write the set `done`, and `done_at`: when each
-- task was done, which is kept only where keep_done speaks of times or of a number of tasks. A queue with keep_done "compact" keeps no
-- ids: then a room of its own has functions behind the same names. Which functions serve is chosen once, when the script begins
-- PARTS priority
-- ROOMS compact
-- is_done       is this task done?
-- done_among    which of these tasks are done, as a 1 for each task that is
-- done_sound    fail on keys of a foreign type before anything is written; `early` if there is anything to write before finish(), undo()
--               or remember(). It is nil where finish() itself fails on such a key
-- finish        tasks in the set `from` are done, those of `ids` that `which` says true for; gives the tasks that have been there, and
--               `which` says false for the others from now on
-- undo          these tasks are not done
-- revive        a task that is done moves into another set; its time is forgotten by undate(). Gives 1, or 0 for a task that is not done
-- look_at       how a room reads a set of its own: with redis.pcall, a set of a foreign type counts as empty
-- remember, done_known, look_through, mend_seen   what only the room has; nil elsewhere
local compact = uses and has('compact')
local dates_done = keep_done ~= 'forever' and keep_done ~= 'no' and keep_done ~= 'compact'
local is_done, done_among, done_sound, finish, undo, revive, remember, done_known, look_through, mend_seen
local look_at = redis.call

-- undate: forget when these tasks were done. Also makes a full server allow what follows, as even_when_full() does
local function undate(ids)
  redis.call('ZREM', done_at, unpack(ids))
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
    local call, keeps, ended = redis.call, keep_done ~= 'no', {}
    for i = 1, #ids do
      if which[i] then
        if (keeps and call('SMOVE', from, done, ids[i]) or not keeps and call('SREM', from, ids[i])) == 1 then
          ended[#ended + 1] = ids[i]
        else
          which[i] = false
        end
      end
    end
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
