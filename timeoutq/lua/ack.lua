-- ack: end leases as done, or for a time, and in the same step put the tasks that they found.
-- KEYS  todos in_progress done failed scheduled leases owners lock done_at payload attempts crashes errors runtime meta stats bell alarm calls
-- PARTS open sections items drop replay ready done add rerun results cancel
-- SOUND stats leases calls; payload attempts crashes errors releases groups; done_at runtime traces trace_uses trace_texts trace_at
-- BY    4 the token of the first lease
-- ARGV  1 call id, digest a   2 age of the call, ms   3.. count, runs of (token, length, id * length); sections
-- SECTIONS  again=ms after which the tasks are ready again   payload=1 for one lease: the payload that its task has then
--       put=n ids that it found   payloads=pairs (position in put, payload)   groups=pairs (position in put, host)
--       priorities=pairs (position in put, priority)   improve=n positions in put, none for all: as of put
--       results=pairs (position, result)   times=numbers (position, ms for which the result is kept)
--       bare=n positions of tasks whose ids are not kept in `done`   until=numbers (position, ms for which `done` keeps the id,
--       whatever keep_done says)   unique=numbers (position in put, ms): as of put   rerun=n positions in put, none for all: as of put
-- Reply letters, one per lease: O acked; k acked, and the id stays in done for ever, though `until` has a time for it; R this very call was carried out before; L the lease is not this token's
local call_id = ARGV[1]
local ids, tokens, at = read_leases(3)
local given, refused = sections(at, ' again=ms payload=1 put=n payloads=pairs groups=pairs priorities=pairs improve=n results=pairs times=numbers bare=n until=numbers unique=numbers rerun=n')
if refused then return refused end
local priorities, unfit
if given.put and given.priorities then priorities, unfit = rarely('priorities_of')(given.put, given) end
if given.put and given.unique then unfit = unfit or rarely('cannot_last')(given.unique) end
if unfit then return unfit end
local again_ms = tonumber(given.again or -1)
local yes, codes, ended, lost = mine(ids, tokens), {}, {}, 0
local recorded, limited = sound()
if done_sound then done_sound(ids, given.put or given.results) end
if given.results or given.bare or given['until'] then rarely('may_finish')() end
-- a fingerprint cannot be forgotten after a time, but neither this ack nor the others of the call are refused for that: it stays
local lasting, stays = again_ms < 0 and given['until'], nil
if compact then lasting, stays = nil, lasting end
if lasting then redis.call('ZCARD', key('done_until')) end
if given.put and given.unique then rarely('may_group')() end -- a failed task that it puts may come back
local found, itself, held, anew, anew_names, over, fresh, stopped = {}, false, nil, {}, {}, {}, nil, {}
local bare = given.bare or {}
if given.put or again_ms >= 0 or given.results or lasting then
  -- a lease ends only after its outcome is written: so a script that is refused half-way loses nothing
  held = redis.call('SMISMEMBER', in_progress, unpack(ids))
  redis.call('ZCARD', scheduled)
  redis.call('XLEN', alarm)
  if yes[1] and held[1] == 1 then found = given.put or {} end
  -- a handler may put its own task again: if done tasks are not kept, this is possible only after the task has ended; until then
  -- the lease keeps the task alive
  for i = 1, #found do itself = itself or (keep_done == 'no' or #bare > 0) and again_ms < 0 and found[i] == ids[1] end
  -- a task that has itself run once more is marked like any other, before its run ends
  local once_more = given.rerun and rarely('is_among')(ids[1], found, given.rerun)
  if once_more then itself = false end
  if itself or priorities or given.rerun then
    -- add() may not have read these when something is written
    for _, set in ipairs({todos, done, failed}) do redis.call('SCARD', set) end
    if given.rerun then redis.call('HLEN', key('rerun')) end
  end
  if given.results and again_ms < 0 then
    local marks, ends = run_again and marks_of(ids) or {}, {}
    for i = 1, #ids do ends[i] = yes[i] and held[i] == 1 and not marks[i] and not (once_more and ids[i] == ids[1]) end
    fresh = rarely('keep_results')(ids, ends, given.results, given.times or {})
  end
  even_when_full()
  if #found > 0 then rest(ids, yes, held) end
  if #found > 0 and not itself then rarely('add')(found, given, false, false, priorities) end
end
if run_again then
  anew, anew_names = run_again(ids, yes, over)
elseif given.rerun then
  -- the put of this ack may have marked the first task of the queue
  anew, anew_names = rarely('run_marked')(ids, yes, over)
end
if again_ms >= 0 then
  if has('cancel') then stopped = rarely('stop')(ids, yes, over) end
  local dues = {}
  for i = 1, #ids do
    if yes[i] and held[i] == 1 then dues[#dues + 1], dues[#dues + 2] = now + again_ms, ids[i] end
  end
  if #dues > 0 then
    if given.payload then redis.call('HSET', payload, dues[2], given.payload) end
    redis.call('ZADD', scheduled, unpack(dues))
    rouse(now + again_ms)
  end
end
if again_ms < 0 then
  if lasting then
    ended = rarely('finish_lasting')(in_progress, ids, yes, bare, lasting)
  else
    ended = #bare == 0 and finish(in_progress, ids, yes) or rarely('finish_bare')(in_progress, ids, yes, bare)
  end
else
  for i = 1, #ids do
    yes[i] = yes[i] and redis.call('SREM', in_progress, ids[i]) == 1
    if yes[i] then ended[#ended + 1] = ids[i] end
  end
end
for i = 1, #ids do
  codes[i] = yes[i] and stays and stays[i] and 'k' or (yes[i] or over[i]) and 'O' or 'L'
  if codes[i] == 'L' then lost = lost + 1 end
end
if #anew > 0 then
  -- they leave todos or in_progress like the others, and become ready in the same step
  drop(anew, not limited)
  count_up(stats, 'acked', #anew)
  depart(anew, anew_names, 1, 0)
  arrive(anew, anew_names)
  if itself then rarely('add')(found, given, false, false, priorities) end
  if #ended == 0 then turn() end
end
if #stopped > 0 then
  drop(stopped, not limited)
  count_up(stats, 'acked', #stopped)
  pass_on(stopped, 1)
end
if #ended > 0 then
  if not itself then drop(ended, not limited) end
  if recorded then
    if again_ms < 0 then redis.call('HDEL', payload, unpack(ended)) end
    clear(ended)
  end
  count_up(stats, 'acked', #ended)
  if again_ms >= 0 then count_up(stats, 'again', #ended) elseif tell_ended then tell_ended(ended, fresh, true) end
  pass_on(ended, 1)
  if recorded and again_ms < 0 then ungroup(ended) end
  if itself then
    rarely('add')(found, given, false, false, priorities)
    drop(ended, not limited)
  end
end
return settle(call_id, codes, lost, #ended + #anew + #stopped)
