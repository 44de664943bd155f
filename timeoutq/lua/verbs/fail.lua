-- fail: a handler failed. The task is scheduled for another attempt, or moved to failed when there is none left.
-- ARGS  1 call id, digest f   2 age of the call, ms   3.. count, runs of (token, length, id * length);
--       (retry ms or -1, error) * count; sections: when the task is tried again, -1 to give up; the text of the error
-- SECTIONS  blocks=numbers (position, ms for which its host is blocked)   traces=pairs (position, digest of its traceback)
--       texts=n (digest, traceback) *   results=pairs (position, what is kept as the result if the task goes to failed)
--       times=numbers (position, ms for which the result is kept)
--       full=0 the server has no memory for the results: they are kept empty, and counted
-- Reply letters, one per lease: O failed; R this very call was carried out before; L the lease is not this token's
verb('fail', {flags = {'allow-oom'}, by = 4, if_room = true}, function()
  local call_id = args[1]
  local ids, tokens, at = leases.read(3)
  local given, refused = sections(at + 2 * #ids, ' blocks=numbers traces=pairs texts=n results=pairs times=numbers full=0')
  if refused then return refused end
  local yes, codes, ended, lost, gave_up = leases.mine(ids, tokens), {}, {}, 0, 0
  local blocked, traces, words, texts = given.blocks or {}, given.traces or {}, given.texts or {}, {}
  for i = 1, #words, 2 do texts[words[i]] = words[i + 1] or '' end
  local retries = {}
  for i = 1, #ids do
    retries[i] = tonumber(args[at + 2 * i - 2])
    if not retries[i] then return {err = 'RETRY of lease ' .. i .. ' is no number of milliseconds'} end
  end
  local counts = call('HMGET', key.attempts, unpack(ids))
  local held, seen, blocks = call('SMISMEMBER', key.in_progress, unpack(ids)), {}, {}
  local marks, anew = rerun.marks_of(ids), {}
  local spent, fresh = {}, nil
  local by, stopped, whose = cancel.by(ids), {}, {}
  if given.results then
    local ends = {}
    for i = 1, #ids do ends[i] = yes[i] and held[i] == 1 and retries[i] < 0 and not marks[i] end
    fresh = results.keep(ids, ends, given.results, given.times or {}, given.full)
  end
  for i = 1, #ids do
    local retry, message = retries[i], args[at + 2 * i - 1]
    codes[i] = 'L'
    if yes[i] and held[i] == 1 and not seen[ids[i]] then
      -- a lease ends only after its outcome is written: so a script that is refused half-way loses nothing
      seen[ids[i]], codes[i], ended[#ended + 1] = true, 'O', ids[i]
      if blocked[i] then blocks[#ended] = now + tonumber(blocked[i]) end
      call('HSET', key.attempts, ids[i], number(counts[i], 0) + 1)
      failures.log(ids[i], message, traces[i], texts)
      if marks[i] then
        anew[#anew + 1] = ids[i]
      elseif retry < 0 then
        gave_up, spent[#spent + 1] = gave_up + 1, ids[i]
        call('SMOVE', key.in_progress, key.failed, ids[i])
      elseif by[i] then
        stopped[#stopped + 1], whose[#whose + 1] = ids[i], by[i]
        call('SMOVE', key.in_progress, key.failed, ids[i])
      else
        call('ZADD', key.scheduled, now + retry, ids[i])
        wake.rouse(now + retry)
        call('SREM', key.in_progress, ids[i])
      end
    end
    if codes[i] == 'L' then lost = lost + 1 end
  end
  local is_held, over, anew_names = {}, {}, nil
  for i = 1, #anew do is_held[i] = true end
  if #anew > 0 then anew, anew_names = rerun.run_again(anew, is_held, over) end
  if #ended > 0 then
    if #stopped > 0 then cancel.fail(stopped, whose) end
    if gave_up > 0 then kinds.note(spent) end
    leases.drop(ended)
    if given.texts then failures.trim() end
    count_up(key.stats, 'failed', #ended)
    local names = ready.hosts_of(ended)
    ready.depart(ended, names, 1, 1)
    for i, until_ms in pairs(blocks) do
      if names[i] then ready.block(names[i], until_ms, string.match(tokens[1], '^[^#]*')) end
    end
    if #anew > 0 then ready.arrive(anew, anew_names) end
    ready.turn()
    if gave_up > 0 then
      count_up(key.stats, 'gave_up', gave_up)
      results.tell_ended(spent, fresh)
    end
  end
  return calls.settle(call_id, codes, lost, #ended)
end)
