-- fail: a handler failed. The task is scheduled for another attempt, or moved to failed when there is none left.
-- ARGS  1 call id, digest f   2 age of the call, ms   3.. count, runs of (token, length, id * length);
--       (retry ms or -1, error) * count; sections: when the task is tried again, -1 to give up; the text of the
--       error: one that is given up and begins with `expired: ` counts as a call that has never begun
-- SECTIONS  blocks=numbers (position, ms for which its host is blocked)   traces=pairs (position, digest of its
--       traceback)   texts=n (digest, traceback) *   results=pairs (position, what is kept as the result if the task
--       goes to failed)   times=numbers (position, ms for which the result is kept)
--       records=n for each lease, what its worker says of the attempt, as in the key record:ID, or nothing
--       full=0 the server has no memory for the results: they are kept empty, and counted
-- Reply letters, one per lease: O failed; R this very call was carried out before; L the lease is not this token's
verb('fail', {flags = {'allow-oom'}, by = 4, if_room = true}, function()
  local ids, tokens, at = leases.read(3)
  local given, refused = sections(at + 2 * #ids, ' blocks=numbers traces=pairs texts=n results=pairs times=numbers'
    .. ' records=n full=0')
  if refused then return refused end
  local retries, errors, blocked, traces, texts = {}, {}, given.blocks or {}, given.traces or {}, {}
  for i = 1, #ids do
    retries[i], errors[i] = tonumber(args[at + 2 * i - 2]), args[at + 2 * i - 1]
    if not retries[i] then return {err = 'RETRY of lease ' .. i .. ' is no number of milliseconds'} end
  end
  for i = 1, given.texts and #given.texts or 0, 2 do texts[given.texts[i]] = given.texts[i + 1] or '' end
  local yes, held = leases.mine(ids, tokens), call('SMISMEMBER', key.in_progress, unpack(ids))
  local counts = call('HMGET', key.attempts, unpack(ids))
  local marks, by, fresh = rerun.marks_of(ids), cancel.by(ids), nil
  local codes, ended, block_of, spent, stopped, whose, told, anew, is_anew, late = {}, {}, {}, {}, {}, {}, {}, {}, {}, 0
  if given.results then
    local ends = {}
    for i = 1, #ids do ends[i] = yes[i] and held[i] == 1 and retries[i] < 0 and not marks[i] end
    fresh = results.keep(ids, ends, given, 'F', tokens, errors)
  end
  for i = 1, #ids do
    local id, retry = ids[i], retries[i]
    codes[i] = 'L'
    if yes[i] and held[i] == 1 and not block_of[id] then
      -- a lease ends only after its outcome is written: so a call that is refused half-way loses nothing
      codes[i], ended[#ended + 1], block_of[id] = 'O', id, tonumber(blocked[i] or -1)
      local message, said = errors[i], results.said_of(id, i, given)
      if retry < 0 and not marks[i] and string.sub(message, 1, 9) == 'expired: ' then -- it has not begun: no attempt
        late = late + 1
        failures.keep(id, message)
        if said then
          results.note(id, said, 'e', tokens[i], message)
          results.list({id})
        end
        local payload = call('HGET', key.payload, id)
        if payload and string.find(payload, '^{"v":.*}$') then -- whoever retries the call wants it late
          call('HSET', key.payload, id, string.sub(payload, 1, -2) .. ',"x":true}')
        end
      else
        call('HSET', key.attempts, id, number(counts[i], 0) + 1)
        failures.log(id, message, traces[i], texts)
        if said and not by[i] and not (fresh and fresh[id]) then results.note(id, said, 'f', tokens[i], message) end
      end
      if marks[i] then
        anew[#anew + 1], is_anew[#anew + 1] = id, true
      elseif retry < 0 then
        spent[#spent + 1] = id
        call('SMOVE', key.in_progress, key.failed, id)
      elseif by[i] then
        stopped[#stopped + 1], whose[#whose + 1], told[#told + 1] = id, by[i], said or false
        call('SMOVE', key.in_progress, key.failed, id)
      else
        call('ZADD', key.scheduled, now + retry, id)
        wake.rouse(now + retry)
        call('SREM', key.in_progress, id)
      end
    end
  end
  if #ended > 0 then
    local back, back_names = rerun.run_again(anew, is_anew, {})
    cancel.fail(stopped, whose, told)
    leases.drop(ended)
    if given.texts then failures.trim() end
    if #ended > late then count_up(key.stats, 'failed', #ended - late) end
    local names = ready.hosts_of(ended)
    ready.depart(ended, names, 1, 1)
    for i = 1, #ended do
      local ms = block_of[ended[i]]
      if ms >= 0 and names[i] then ready.block(names[i], now + ms, string.match(tokens[1], '^[^#]*')) end
    end
    ready.arrive(back, back_names)
    ready.turn()
    failures.spent(spent, fresh, late)
  end
  return calls.settle(args[1], codes, #ended)
end)
