-- fail: a handler failed. The task is scheduled for another attempt, or moved to failed when there is none left.
-- KEYS  todos in_progress failed scheduled leases owners lock attempts runtime meta stats bell alarm calls
-- PARTS open sections items drop replay log ready rerun results cancel
-- SOUND stats leases calls alarm failed scheduled; runtime errors error_log traces trace_uses trace_texts trace_at kinds kind_of
-- BY    4 the token of the first lease
-- ARGV  1 call id, digest f   2 age of the call, ms   3.. count, runs of (token, length, id * length);
--       (retry ms or -1, error) * count; sections: when the task is tried again, -1 to give up; the text of the error
-- SECTIONS  blocks=numbers (position, ms for which its host is blocked)   traces=pairs (position, digest of its traceback)
--       texts=n (digest, traceback) *   results=pairs (position, what is kept as the result if the task goes to failed)
--       times=numbers (position, ms for which the result is kept)
-- Reply letters, one per lease: O failed; R this very call was carried out before; L the lease is not this token's
local call_id = ARGV[1]
local ids, tokens, at = read_leases(3)
local given, refused = sections(at + 2 * #ids, ' blocks=numbers traces=pairs texts=n results=pairs times=numbers')
if refused then return refused end
local yes, codes, ended, lost, gave_up = mine(ids, tokens), {}, {}, 0, 0
local blocked, traces, words, texts = given.blocks or {}, given.traces or {}, given.texts or {}, {}
for i = 1, #words, 2 do texts[words[i]] = words[i + 1] or '' end
local retries = {}
for i = 1, #ids do
  retries[i] = tonumber(ARGV[at + 2 * i - 2])
  if not retries[i] then return {err = 'RETRY of lease ' .. i .. ' is no number of milliseconds'} end
end
local counts = redis.call('HMGET', attempts, unpack(ids))
local held, seen, blocks = redis.call('SMISMEMBER', in_progress, unpack(ids)), {}, {}
local marks, anew = run_again and marks_of(ids) or {}, {}
local spent, fresh = {}, nil
local by, stopped, whose = cancels_of and cancels_of(ids) or {}, {}, {}
sound()
if given.results then
  local ends = {}
  for i = 1, #ids do ends[i] = yes[i] and held[i] == 1 and retries[i] < 0 and not marks[i] end
  fresh = rarely('keep_results')(ids, ends, given.results, given.times or {})
end
even_when_full()
for i = 1, #ids do
  local retry, message = retries[i], ARGV[at + 2 * i - 1]
  codes[i] = 'L'
  if yes[i] and held[i] == 1 and not seen[ids[i]] then
    -- a lease ends only after its outcome is written: so a script that is refused half-way loses nothing
    seen[ids[i]], codes[i], ended[#ended + 1] = true, 'O', ids[i]
    if blocked[i] then blocks[#ended] = now + tonumber(blocked[i]) end
    redis.call('HSET', attempts, ids[i], number(counts[i], 0) + 1)
    log_error(ids[i], message, traces[i], texts)
    if marks[i] then
      anew[#anew + 1] = ids[i]
    elseif retry < 0 then
      gave_up, spent[#spent + 1] = gave_up + 1, ids[i]
      redis.call('SMOVE', in_progress, failed, ids[i])
    elseif by[i] then
      stopped[#stopped + 1], whose[#whose + 1] = ids[i], by[i]
      redis.call('SMOVE', in_progress, failed, ids[i])
    else
      redis.call('ZADD', scheduled, now + retry, ids[i])
      rouse(now + retry)
      redis.call('SREM', in_progress, ids[i])
    end
  end
  if codes[i] == 'L' then lost = lost + 1 end
end
local is_held, over, anew_names = {}, {}, nil
for i = 1, #anew do is_held[i] = true end
if #anew > 0 then anew, anew_names = run_again(anew, is_held, over) end
if #ended > 0 then
  if #stopped > 0 then rarely('cancelled')(stopped, whose) end
  if gave_up > 0 then rarely('note_kinds')(spent) end
  drop(ended)
  if given.texts then trim_traces() end
  count_up(stats, 'failed', #ended)
  local names = hosts_of(ended)
  depart(ended, names, 1, 1)
  for i, until_ms in pairs(blocks) do
    if names[i] then block(names[i], until_ms, string.match(tokens[1], '^[^#]*')) end
  end
  if #anew > 0 then arrive(anew, anew_names) end
  turn()
  if gave_up > 0 then
    count_up(stats, 'gave_up', gave_up)
    if tell_ended then tell_ended(spent, fresh) end
  end
end
return settle(call_id, codes, lost, #ended)
