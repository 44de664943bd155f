-- ack: end leases as done, or for a time, and in the same step put the tasks that they found.
-- ARGS  1 call id, digest a   2 age of the call, ms   3.. count, runs of (token, length, id * length); sections
-- SECTIONS  again=ms after which the tasks are ready again   payload=1 for one lease: the payload that its task has
--       then   put=n ids that it found   payloads=pairs (position in put, payload)   groups=pairs (position in put,
--       host)   priorities=pairs (position in put, priority)   improve=n positions in put, none for all: as of put
--       results=pairs (position, result)   times=numbers (position, ms for which the result is kept)
--       bare=n positions of tasks whose ids are not kept in `done`, none for all   until=numbers (position, ms for which
--       `done` keeps the id, whatever keep_done says)   unique=numbers (position in put, ms): as of put   rerun=n positions
--       in put, none for all: as of put   records=n for each lease, what its worker says of the attempt, as in the key
--       record:ID; only for leases with results   full=0 the server has no memory for the results: they are kept empty,
--       and counted
-- Reply letters, one per lease: O acked; k acked, and the id stays in done for ever, though `until` has a time for it;
--       R this very call was carried out before; L the lease is not this token's
verb('ack', {flags = {'allow-oom'}, by = 4, if_room = true, reads = {'schema', 'uses', 'keep_done'}}, function()
  local ids, tokens, at = leases.read(3)
  local given, refused = sections(at, ' again=ms payload=1 put=n payloads=pairs groups=pairs priorities=pairs improve=n results=pairs'
    .. ' times=numbers records=n full=0 bare=n until=numbers unique=numbers rerun=n')
  if refused then return refused end
  local unfit, priorities
  if given.put then unfit, priorities = tasks.cannot(given.put, given) end
  if unfit then return unfit end
  local again_ms, bare, fresh, stopped = tonumber(given.again or -1), given.bare, nil, none
  local spans, stays = again_ms < 0 and given['until'] or nil, nil
  -- a fingerprint cannot be forgotten after a time, but neither this ack nor the others of the call are refused for
  -- that: it stays
  if compact then spans, stays = nil, spans end
  local recorded = call('EXISTS', key.payload, key.attempts, key.crashes, key.errors, key.releases, key.groups) > 0
  local yes, runs = leases.mine(ids, tokens), none
  if given.put or again_ms >= 0 or given.results or spans then
    local held = call('SMISMEMBER', key.in_progress, unpack(ids))
    runs = {}
    for i = 1, #ids do runs[i] = yes[i] and held[i] == 1 end
  end

  -- a lease ends only after its outcome is written: so a call that is refused half-way loses nothing
  local found = runs[1] and given.put or none
  -- a task that has itself run once more is marked like any other, before its run ends. One that puts itself while done
  -- tasks leave no id can be put only after its run has ended; until then the lease keeps the task alive
  local once_more = given.rerun and rerun.is_among(ids[1], found, given.rerun)
  local itself = not once_more and again_ms < 0 and (setting.keep_done == 'no' or bare) and rerun.is_among(ids[1], found, {})
  if given.results and again_ms < 0 then
    local marks, ends = rerun.marks_of(ids), {}
    for i = 1, #ids do ends[i] = runs[i] and not marks[i] and not (once_more and ids[i] == ids[1]) end
    fresh = results.keep(ids, ends, given, 'a', tokens)
  end
  if #found > 0 then ready.rest(ids, runs) end
  if #found > 0 and not itself then tasks.add(found, given, false, false, priorities) end

  -- tasks that are to run once more are ready again, and those that somebody has cancelled go to failed. The others end
  local over, ended = {}, nil
  local anew, anew_names = rerun.run_again(ids, yes, over)
  if again_ms >= 0 then
    stopped = cancel.stop(ids, yes, over)
    for i = 1, #ids do yes[i] = yes[i] and runs[i] end
    local later = chosen(ids, yes)
    if #later > 0 then
      if given.payload then call('HSET', key.payload, later[1], given.payload) end
      call('ZADD', key.scheduled, unpack(alike(later, now + again_ms)))
      wake.rouse(now + again_ms)
    end
    for i = 1, #ids do yes[i] = yes[i] and call('SREM', key.in_progress, ids[i]) == 1 end
    ended = chosen(ids, yes)
  elseif spans or bare then
    ended = done.finish_each(key.in_progress, ids, yes, bare, spans or {})
  else
    ended = done.finish(key.in_progress, ids, yes)
  end
  local codes = {}
  for i = 1, #ids do codes[i] = yes[i] and stays and stays[i] and 'k' or (yes[i] or over[i]) and 'O' or 'L' end

  -- what is left of their runs goes; hosts have their turn, and whoever waits for the tasks is told
  local all = #ended + #anew + #stopped
  if all > 0 then count_up(key.stats, 'acked', all) end
  if #anew > 0 then
    leases.drop(anew)
    ready.depart(anew, anew_names, 1, 0)
    ready.arrive(anew, anew_names)
    if itself then tasks.add(found, given, false, false, priorities) end
    if #ended == 0 then ready.turn() end
  end
  if #stopped > 0 then
    leases.drop(stopped)
    ready.pass_on(stopped, 1)
  end
  if #ended > 0 then
    if not itself then leases.drop(ended) end
    if recorded then
      if again_ms < 0 then call('HDEL', key.payload, unpack(ended)) end
      failures.clear(ended)
    end
    if again_ms >= 0 then count_up(key.stats, 'again', #ended) else results.tell_ended(ended, fresh, true) end
    ready.pass_on(ended, 1)
    if recorded and again_ms < 0 then groups.forget(ended) end
    if itself then
      tasks.add(found, given, false, false, priorities)
      leases.drop(ended)
    end
  end
  return calls.settle(args[1], codes, all)
end)
