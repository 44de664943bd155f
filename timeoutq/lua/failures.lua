-- failures: what is remembered of the failures and releases of tasks, besides attempts and crashes
-- errors       the last error of a task; error_log  the last fifty of the queue
-- traces       the digest of the traceback that belongs to the last error; trace_uses  how many tasks have that digest
-- trace_texts  the tracebacks themselves, the newest 200; trace_at  when each was last met, ms
-- releases     how often the handler of a task has released it; and after a blank, if any, how often to block its host;
--              and after another blank, if any, when a worker that cannot run the task first gave it back, ms, and how
--              often the task had failed
do
  local traced -- are there tracebacks? nil while this call has not asked

  function failures.begin() traced = nil end

  -- untrace: forget the tracebacks of these tasks; a text that no task has any more is deleted
  function failures.untrace(ids)
    if traced == nil then traced = call('EXISTS', key.traces) == 1 end
    if not traced then return end
    local held, counts, seen = call('HMGET', key.traces, unpack(ids)), {}, {}
    for i = 1, #ids do
      if held[i] and not seen[ids[i]] then
        seen[ids[i]], counts[held[i]] = true, (counts[held[i]] or 0) + 1
      end
    end
    if not next(counts) then return end
    call('HDEL', key.traces, unpack(ids))
    for digest, count in pairs(counts) do
      if count_up(key.trace_uses, digest, -count) <= 0 then
        call('HDEL', key.trace_uses, digest)
        call('HDEL', key.trace_texts, digest)
        call('ZREM', key.trace_at, digest)
      end
    end
  end

  -- keep: keep a task's error with the task
  function failures.keep(id, message)
    failures.untrace({id})
    call('HSET', key.errors, id, now .. ' ' .. message)
  end

  -- note: add an error to the last fifty of the queue; `id` is the task, or else what the error is about
  function failures.note(id, message)
    call('LPUSH', key.error_log, #id .. ' ' .. id .. now .. ' ' .. message)
    call('LTRIM', key.error_log, 0, 49)
  end

  -- log: keep a task's error and the digest of its traceback; `texts` are tracebacks by their digests
  function failures.log(id, message, digest, texts)
    failures.keep(id, message)
    failures.note(id, message)
    if digest and digest ~= '' then
      traced = true
      count_up(key.trace_uses, digest, 1)
      call('HSET', key.traces, id, digest)
      call('ZADD', key.trace_at, now, digest)
      if texts[digest] then call('HSETNX', key.trace_texts, digest, texts[digest]) end
      texts[digest] = nil
    end
  end

  -- trim: keep only the texts of the newest 200 tracebacks
  function failures.trim()
    local over = call('ZCARD', key.trace_at) - 200
    if over > 0 then
      local old = call('ZRANGE', key.trace_at, 0, math.min(over, 500) - 1)
      call('ZREM', key.trace_at, unpack(old))
      call('HDEL', key.trace_texts, unpack(old))
    end
  end

  -- clear: let these tasks begin anew: forget their attempts, crashes, errors, tracebacks and releases
  function failures.clear(ids)
    if call('EXISTS', key.attempts, key.crashes, key.errors, key.releases) == 0 then return end
    call('HDEL', key.attempts, unpack(ids))
    call('HDEL', key.crashes, unpack(ids))
    call('HDEL', key.errors, unpack(ids))
    call('HDEL', key.releases, unpack(ids))
    failures.untrace(ids)
  end

  -- spent: these tasks are in failed for good, and their errors are kept; `fresh` as of results.tell_ended; `late` of
  -- them are calls that have expired
  function failures.spent(ids, fresh, late)
    if #ids == 0 then return end
    kinds.note(ids)
    if (late or 0) > 0 then count_up(key.stats, 'calls_expired', late) end
    if #ids > (late or 0) then count_up(key.stats, 'gave_up', #ids - (late or 0)) end
    results.tell_ended(ids, fresh)
  end
end
