-- release: give leases back without blame, to todos at once or to scheduled after a delay. The releases of a task by its handler
-- are counted: with each one the task waits longer, and in the end it goes to failed. Those that block the host are counted apart.
-- Those of workers that cannot run a task are not counted: a time bounds them, from the first one after the last failed attempt on.
-- ARGS  1 call id, digest r   2 age of the call, ms   3.. count, runs of (token, length, id * length); sections
-- SECTIONS  delay=ms after which the tasks are ready   block=ms for which their hosts are blocked
--       deadline=ms until which a lease runs that is to be released; one that runs until another time is answered with L
--       most=1 the release at which a task goes to failed; without it releases are not counted, and one that blocks a host never is
--       within=ms the time since the first such release after which a task is not released any more
-- Reply letters, one per lease: O released; f that was the last release, and the task is in failed; c the task was cancelled, and is
--       in failed; R this very call was carried out before; L the lease is not this token's; o the time is over, and the token has the
--       lease still
verb('release', {flags = {'allow-oom'}, by = 4}, function()
  local call_id = args[1]
  local ids, tokens, at = leases.read(3)
  local given, refused = sections(at, ' delay=ms block=ms deadline=ms most=1 within=ms')
  if refused then return refused end
  local delay, block_ms, most = tonumber(given.delay or 0), tonumber(given.block or 0), tonumber(given.most or 0)
  local names = ready.hosts_of(ids)
  local yes, codes, ended, ended_names, lost = leases.mine(ids, tokens), {}, {}, {}, 0
  local held, seen = call('SMISMEMBER', key.in_progress, unpack(ids)), {}
  if given.deadline then
    local ends = call('ZMSCORE', key.leases, unpack(ids))
    for i = 1, #ids do yes[i] = yes[i] and moment(ends[i]) == tonumber(given.deadline) end
  end
  local within = tonumber(given.within)
  local counts = (most > 0 or block_ms > 0 or within) and call('HMGET', key.releases, unpack(ids))
  local failed = within and call('HMGET', key.attempts, unpack(ids))
  local by, stopped, whose = cancel.by(ids), {}, {}
  local into, back, back_names, dues, soonest, counted, spent = {}, {}, {}, {}, math.huge, {}, {}
  local marks, anew, is_held = rerun.marks_of(ids), {}, {}
  for i = 1, #ids do
    codes[i] = 'L'
    local own, blocking, unrun = failures.released(counts and counts[i])
    local since, failed_before = string.match(unrun, '^ (%d+) (%d+)$')
    if within and number(failed[i], 0) ~= number(failed_before) then since = now end
    since = within and math.min(number(since, now), now)
    if within and not by[i] and yes[i] and held[i] == 1 and now - since >= within then
      codes[i] = 'o'
    elseif yes[i] and held[i] == 1 and not seen[ids[i]] then
      local id, count, wait = ids[i], 0, delay
      -- a block bounds how often its host's tasks run; where no host can be blocked, the release is counted like any other
      local bound = block_ms > 0 and names[i]
      if within and not by[i] then
        counted[#counted + 1] = id
        counted[#counted + 1] = string.format('%.0f %.0f %.0f %.0f', own, blocking, since, number(failed[i], 0))
      elseif (bound or most > 0) and not by[i] then
        if bound then
          blocking = blocking + 1
        else
          own, count = own + 1, own + 1
        end
        counted[#counted + 1] = id
        counted[#counted + 1] = (blocking > 0 or unrun ~= '') and string.format('%.0f %.0f%s', own, blocking, unrun) or own
      end
      -- the first release costs no wait, the second 50 ms, and each further release twice as long as the one before, up to a minute
      if count > 1 then wait = math.max(wait, math.min(60000, math.floor(50 * 2 ^ math.min(count - 2, 11)))) end
      seen[id], codes[i], ended[#ended + 1] = true, 'O', id
      ended_names[#ended] = names[i]
      if by[i] then
        codes[i], into[#ended], stopped[#stopped + 1], whose[#whose + 1] = 'c', key.failed, id, by[i]
      elseif count > 0 and count >= most and marks[i] then
        anew[#anew + 1], is_held[#is_held + 1] = id, true
      elseif count > 0 and count >= most then
        codes[i], into[#ended], spent[#spent + 1] = 'f', key.failed, {id, count}
      elseif wait > 0 then
        dues[#dues + 1], dues[#dues + 2], soonest = now + wait, id, math.min(soonest, now + wait)
      else
        into[#ended], back[#back + 1], back_names[#back + 1] = ready.entry(names[i]), id, names[i]
      end
    end
    if codes[i] == 'L' then lost = lost + 1 end
  end
  if #ended > 0 then
    -- a lease ends only after its outcome is written: so a script that is refused half-way loses nothing
    if #counted > 0 then call('HSET', key.releases, unpack(counted)) end
    if #anew > 0 then
      local names_of_anew
      anew, names_of_anew = rerun.run_again(anew, is_held, {})
      for i = 1, #anew do back[#back + 1], back_names[#back + 1] = anew[i], names_of_anew[i] end
    end
    rerun.renew(ended, rerun.marks_of(ended)) -- the run that is given back goes on with what was put meanwhile
    for i = 1, #spent do
      failures.log(spent[i][1], 'released ' .. spent[i][2] .. ' times by its handler; let it return Retry or GiveUp, or allow '
        .. 'more with max_releases')
    end
    if #dues > 0 then
      call('ZADD', key.scheduled, unpack(dues))
      wake.rouse(soonest)
    end
    if #stopped > 0 then cancel.fail(stopped, whose) end
    for i = 1, #ended do
      if into[i] then
        call('SMOVE', key.in_progress, into[i], ended[i])
      else
        call('SREM', key.in_progress, ended[i])
      end
    end
    leases.drop(ended)
    count_up(key.stats, 'released', #ended)
    if #spent > 0 then
      count_up(key.stats, 'gave_up', #spent)
      local over = {}
      for i = 1, #spent do over[i] = spent[i][1] end
      kinds.note(over)
      results.tell_ended(over)
    end
    ready.depart(ended, ended_names, 0, 0)
    ready.arrive(back, back_names)
    if block_ms > 0 then
      for i = 1, #ended do
        if ended_names[i] then ready.block(ended_names[i], now + block_ms, string.match(tokens[1], '^[^#]*')) end
      end
    end
    ready.turn()
  end
  return calls.settle(call_id, codes, lost, #ended)
end)
