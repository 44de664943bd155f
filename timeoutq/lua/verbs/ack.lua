-- ack: end leases as done, or for a time, and in the same step put the tasks that they found.
-- ARGS  1 call id, digest a   2 age of the call, ms   3.. count, runs of (token, length, id * length); sections
-- SECTIONS  again=ms after which the tasks are ready again   payload=1 for one lease: the payload that its task has then
--       put=n ids that it found   payloads=pairs (position in put, payload)   groups=pairs (position in put, host)
--       priorities=pairs (position in put, priority)   improve=n positions in put, none for all: as of put
--       results=pairs (position, result)   times=numbers (position, ms for which the result is kept)
--       bare=n positions of tasks whose ids are not kept in `done`   until=numbers (position, ms for which `done` keeps the id,
--       whatever keep_done says)   unique=numbers (position in put, ms): as of put   rerun=n positions in put, none for all: as of put
--       full=0 the server has no memory for the results: they are kept empty, and counted
-- Reply letters, one per lease: O acked; k acked, and the id stays in done for ever, though `until` has a time for it; R this very call was carried out before; L the lease is not this token's
verb('ack', {flags = {'allow-oom'}, by = 4, if_room = true, reads = {'schema', 'uses', 'keep_done'}}, function()
  local call_id = args[1]
  local ids, tokens, at = leases.read(3)
  local given, refused = sections(at, ' again=ms payload=1 put=n payloads=pairs groups=pairs priorities=pairs improve=n results=pairs times=numbers full=0 bare=n until=numbers unique=numbers rerun=n')
  if refused then return refused end
  local priorities, unfit
  if given.put and given.priorities then priorities, unfit = priority.of(given.put, given) end
  if given.put and given.unique then unfit = unfit or lasting.cannot(given.unique) end
  if unfit then return unfit end
  local again_ms = tonumber(given.again or -1)
  local yes, codes, ended, lost = leases.mine(ids, tokens), {}, {}, 0
  local recorded = call('EXISTS', key.payload, key.attempts, key.crashes, key.errors, key.releases, key.groups, key.runtime) > 0
  -- a fingerprint cannot be forgotten after a time, but neither this ack nor the others of the call are refused for that: it stays
  local spans, stays = again_ms < 0 and given['until'], nil
  if compact then spans, stays = nil, spans end
  local found, itself, held, anew, anew_names, over, fresh, stopped = {}, false, nil, {}, {}, {}, nil, {}
  local bare = given.bare or {}
  if given.put or again_ms >= 0 or given.results or spans then
    -- a lease ends only after its outcome is written: so a script that is refused half-way loses nothing
    held = call('SMISMEMBER', key.in_progress, unpack(ids))
    if yes[1] and held[1] == 1 then found = given.put or {} end
    -- a handler may put its own task again: if done tasks are not kept, this is possible only after the task has ended; until then
    -- the lease keeps the task alive
    for i = 1, #found do itself = itself or (setting.keep_done == 'no' or #bare > 0) and again_ms < 0 and found[i] == ids[1] end
    -- a task that has itself run once more is marked like any other, before its run ends
    local once_more = given.rerun and rerun.is_among(ids[1], found, given.rerun)
    if once_more then itself = false end
    if given.results and again_ms < 0 then
      local marks, ends = rerun.marks_of(ids), {}
      for i = 1, #ids do ends[i] = yes[i] and held[i] == 1 and not marks[i] and not (once_more and ids[i] == ids[1]) end
      fresh = results.keep(ids, ends, given.results, given.times or {}, given.full)
    end
    if #found > 0 then ready.rest(ids, yes, held) end
    if #found > 0 and not itself then tasks.add(found, given, false, false, priorities) end
  end
  -- the put of this ack may have marked a task
  anew, anew_names = rerun.run_again(ids, yes, over)
  if again_ms >= 0 then
    if has('cancel') then stopped = cancel.stop(ids, yes, over) end
    local dues = {}
    for i = 1, #ids do
      if yes[i] and held[i] == 1 then dues[#dues + 1], dues[#dues + 2] = now + again_ms, ids[i] end
    end
    if #dues > 0 then
      if given.payload then call('HSET', key.payload, dues[2], given.payload) end
      call('ZADD', key.scheduled, unpack(dues))
      wake.rouse(now + again_ms)
    end
  end
  if again_ms < 0 then
    if spans then
      ended = done.finish_lasting(key.in_progress, ids, yes, bare, spans)
    else
      ended = #bare == 0 and done.finish(key.in_progress, ids, yes) or done.finish_bare(key.in_progress, ids, yes, bare)
    end
  else
    for i = 1, #ids do
      yes[i] = yes[i] and call('SREM', key.in_progress, ids[i]) == 1
      if yes[i] then ended[#ended + 1] = ids[i] end
    end
  end
  for i = 1, #ids do
    codes[i] = yes[i] and stays and stays[i] and 'k' or (yes[i] or over[i]) and 'O' or 'L'
    if codes[i] == 'L' then lost = lost + 1 end
  end
  if #anew > 0 then
    -- they leave todos or in_progress like the others, and become ready in the same step
    leases.drop(anew)
    count_up(key.stats, 'acked', #anew)
    ready.depart(anew, anew_names, 1, 0)
    ready.arrive(anew, anew_names)
    if itself then tasks.add(found, given, false, false, priorities) end
    if #ended == 0 then ready.turn() end
  end
  if #stopped > 0 then
    leases.drop(stopped)
    count_up(key.stats, 'acked', #stopped)
    ready.pass_on(stopped, 1)
  end
  if #ended > 0 then
    if not itself then leases.drop(ended, not recorded) end
    if recorded then
      if again_ms < 0 then call('HDEL', key.payload, unpack(ended)) end
      failures.clear(ended)
    end
    count_up(key.stats, 'acked', #ended)
    if again_ms >= 0 then count_up(key.stats, 'again', #ended) else results.tell_ended(ended, fresh, true) end
    ready.pass_on(ended, 1)
    if recorded and again_ms < 0 then groups.forget(ended) end
    if itself then
      tasks.add(found, given, false, false, priorities)
      leases.drop(ended)
    end
  end
  return calls.settle(call_id, codes, lost, #ended + #anew + #stopped)
end)
