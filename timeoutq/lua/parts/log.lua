-- log: what is remembered of the failures and releases of tasks, in addition to attempts and crashes
-- errors       the last error of a task; error_log  the last fifty of the queue
-- traces       the digest of the traceback that belongs to the last error; trace_uses  how many tasks have that digest
-- trace_texts  the tracebacks themselves, the newest 200; trace_at  when each was last met, ms
-- PARTS kinds
-- releases     how often the handler of a task has released it; and after a blank, if any, how often to block its host; and after
--              another blank, if any, when a worker that cannot run the task first gave it back, ms, and how often the task had failed
local traced

-- untrace: forget the tracebacks of these tasks; a text that no task has any more is deleted
local function untrace(ids)
  if traced == nil then traced = redis.call('EXISTS', key('traces')) == 1 end
  if not traced then return end
  local held, uses, seen = redis.call('HMGET', key('traces'), unpack(ids)), {}, {}
  for i = 1, #ids do
    if held[i] and not seen[ids[i]] then
      seen[ids[i]], uses[held[i]] = true, (uses[held[i]] or 0) + 1
    end
  end
  if not next(uses) then return end
  redis.call('HDEL', key('traces'), unpack(ids))
  for digest, count in pairs(uses) do
    if count_up(key('trace_uses'), digest, -count) <= 0 then
      redis.call('HDEL', key('trace_uses'), digest)
      redis.call('HDEL', key('trace_texts'), digest)
      redis.call('ZREM', key('trace_at'), digest)
    end
  end
end

-- released: read how often a task was released, how often to block its host, and what follows: since when it is given back unrun
local function released(text)
  local own, blocking, unrun = string.match(text or '', '^(%d+) (%d+)( ?[%d ]*)$')
  return number(own or text, 0), number(blocking, 0), unrun or ''
end

-- keep_error: keep a task's error with the task
local function keep_error(id, message)
  untrace({id})
  redis.call('HSET', key('errors'), id, now .. ' ' .. message)
end

-- note_error: add an error to the last fifty of the queue; `id` is the task, or else what the error is about
local function note_error(id, message)
  redis.call('LPUSH', key('error_log'), #id .. ' ' .. id .. now .. ' ' .. message)
  redis.call('LTRIM', key('error_log'), 0, 49)
end

-- log_error: keep a task's error and, if there is one, the digest of its traceback; `texts` are tracebacks by their digests
local function log_error(id, message, digest, texts)
  keep_error(id, message)
  note_error(id, message)
  if digest and digest ~= '' then
    traced = true
    count_up(key('trace_uses'), digest, 1)
    redis.call('HSET', key('traces'), id, digest)
    redis.call('ZADD', key('trace_at'), now, digest)
    if texts[digest] then
      redis.call('HSETNX', key('trace_texts'), digest, texts[digest])
      texts[digest] = nil
    end
  end
end

-- trim_traces: keep only the texts of the newest 200 tracebacks
local function trim_traces()
  local over = redis.call('ZCARD', key('trace_at')) - 200
  if over > 0 then
    local old = redis.call('ZRANGE', key('trace_at'), 0, math.min(over, 500) - 1)
    redis.call('ZREM', key('trace_at'), unpack(old))
    redis.call('HDEL', key('trace_texts'), unpack(old))
  end
end

-- may_clear: fail on keys of a foreign type before anything is written; other scripts do this by the line SOUND in their headers
local function may_clear()
  for _, name in ipairs({'attempts', 'crashes', 'errors', 'releases', 'traces', 'trace_uses', 'trace_texts'}) do
    redis.call('HLEN', key(name))
  end
  redis.call('ZCARD', key('trace_at'))
  may_group()
end

-- clear: let these tasks begin anew: forget their attempts, crashes, errors, tracebacks and releases
local function clear(ids)
  local kept = redis.call('EXISTS', key('attempts'), key('crashes'), key('errors'), key('releases'))
  if kept == 0 then return end
  redis.call('HDEL', key('attempts'), unpack(ids))
  redis.call('HDEL', key('crashes'), unpack(ids))
  redis.call('HDEL', key('errors'), unpack(ids))
  redis.call('HDEL', key('releases'), unpack(ids))
  untrace(ids)
end
