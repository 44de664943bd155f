-- lasting: done tasks that block their ids for a time. When the time is over, a put adds the task as if no state knew
-- it, and prune removes it from done. keep_done does not count for these tasks. A queue uses `until` as long as it has
-- such a task
-- done_until  of each of these tasks: until when, ms

-- keep: these tasks are about to be done; rows has the time until which each blocks its id, and the id, by turns
function lasting.keep(rows)
  if #rows == 0 then return end
  call('ZADD', key.done_until, unpack(rows))
  settings.use('until', true)
end

-- cannot: why a put cannot say for how long tasks block their ids, as an error; nil if it can. Every queue takes 0 ms
function lasting.cannot(unique)
  local longest = 0
  for _, ms in pairs(unique or {}) do longest = math.max(longest, tonumber(ms)) end
  if longest > 0 and has('compact') then
    return {err = 'COMPACT a task cannot block its id for a time (unique=) here: this queue has keep_done="compact", which keeps '
      .. 'fingerprints of done tasks, not ids with a time: use unique="active" or "forever" for calls, put other tasks without '
      .. 'unique, or use a queue with another keep_done'}
  end
end

-- lapsed_of: which tasks block their ids no longer: done ones that prune will drop; a failed one unique[i] ms after its
-- last error, nil for never
function lasting.lapsed_of(ids, where, unique)
  local lapsed, any = {}, false
  for i = 1, #ids do any = any or where[i] == 'd' end
  local since = any and number(by_id.since())
  local times = since and done.times(ids) or lapsed
  local ends = any and has('until') and call('ZMSCORE', key.done_until, unpack(ids)) or lapsed
  local lines = unique and call('HMGET', key.errors, unpack(ids)) or lapsed
  for i = 1, #ids do
    local ms = unique and tonumber(unique[i])
    if where[i] == 'd' then
      if ends[i] then lapsed[i] = (moment(ends[i]) or now + 1) <= now else lapsed[i] = number(times[i], now) < (since or 0) end
    elseif where[i] == 'f' and ms then
      lapsed[i] = number(string.match(lines[i] or '', '^%d+'), 0) + ms <= now
    end
  end
  return lapsed
end

-- others: those of these done tasks for which keep_done counts
function lasting.others(ids)
  if #ids == 0 or not has('until') then return ids end
  local ends, others = call('ZMSCORE', key.done_until, unpack(ids)), {}
  for i = 1, #ids do
    if not ends[i] then others[#others + 1] = ids[i] end
  end
  return others
end
