-- release: give leases back without blame, to todos at once or to scheduled after a delay. The releases of a task by
-- its handler are counted: with each one the task waits longer, and in the end it goes to failed. Those that block the
-- host are counted apart. Those of workers that cannot run a task are not counted: a time bounds them, from the first
-- one after the last failed attempt on.
-- ARGS  1 call id, digest r   2 age of the call, ms   3.. count, runs of (token, length, id * length); sections
-- SECTIONS  delay=ms after which the tasks are ready   block=ms for which their hosts are blocked
--       deadline=ms until which a lease runs that is to be released; one that runs until another time is answered with
--       L   most=1 the release at which a task goes to failed; without it releases are not counted, and one that blocks
--       a host never is   within=ms the time since the first such release after which a task is not released any more
--       why=1 the reason of such a release, which is kept as the error of the tasks   record=1 for one lease, what its
--       worker says of the attempt, as in the key record:ID, if the task is cancelled
-- Reply letters, one per lease: O released; f that was the last release, and the task is in failed; c the task was
--       cancelled, and is in failed; R this very call was carried out before; L the lease is not this token's; o the
--       time is over, and the token has the lease still
do
  -- wait_of: how long a task waits that its handler has released so often: the first time not at all, the second 50 ms,
  -- and each further time twice as long as the one before, up to a minute
  local function wait_of(count)
    return count > 1 and math.min(60000, math.floor(50 * 2 ^ math.min(count - 2, 11))) or 0
  end

  -- released: how often a task was released, how often to block its host, and the words on its releases by workers that
  -- cannot run it
  local function released(text)
    local own, blocking, unrun = string.match(text or '', '^(%d+) (%d+)( ?[%d ]*)$')
    return number(own or text, 0), number(blocking, 0), unrun or ''
  end

  -- first_unrun: since when a worker that cannot run the task gives it back, which has failed so often
  local function first_unrun(unrun, failed)
    local since, failed_before = string.match(unrun, '^ (%d+) (%d+)$')
    return failed == number(failed_before) and math.min(number(since), now) or now
  end

  verb('release', {flags = {'allow-oom'}, by = 4}, function()
    local ids, tokens, at = leases.read(3)
    local given, refused = sections(at, ' delay=ms block=ms deadline=ms most=1 within=ms why=1 record=1')
    if refused then return refused end
    local delay, block_ms, most = tonumber(given.delay or 0), tonumber(given.block or 0), tonumber(given.most or 0)
    local within, names, yes = tonumber(given.within), ready.hosts_of(ids), leases.mine(ids, tokens)
    local held, seen = call('SMISMEMBER', key.in_progress, unpack(ids)), {}
    local ends = given.deadline and call('ZMSCORE', key.leases, unpack(ids))
    local counts = (most > 0 or block_ms > 0 or within) and call('HMGET', key.releases, unpack(ids)) or {}
    local failed = within and call('HMGET', key.attempts, unpack(ids)) or {}
    local by, marks = cancel.by(ids), rerun.marks_of(ids)
    local codes, ended, ended_names, into, back, back_names, dues = {}, {}, {}, {}, {}, {}, {}
    local stopped, whose, counted, spent, anew, is_anew, soonest = {}, {}, {}, {}, {}, {}, math.huge
    for i = 1, #ids do
      local id, count = ids[i], 0
      local own, blocking, unrun = released(counts[i])
      local failures_of, since = number(failed[i], 0), now
      if within then since = first_unrun(unrun, failures_of) end
      local runs = yes[i] and held[i] == 1 and (not ends or moment(ends[i]) == tonumber(given.deadline))
      codes[i] = 'L'
      if runs and within and not by[i] and now - since >= within then
        codes[i] = 'o'
      elseif runs and not seen[id] then
        -- a block bounds how often its host's tasks run; where no host can be blocked, the release is counted like any
        -- other
        local bound = block_ms > 0 and names[i]
        if within and not by[i] then
          counted[#counted + 1], counted[#counted + 2] = id, string.format('%.0f %.0f %.0f %.0f', own, blocking, since, failures_of)
        elseif (bound or most > 0) and not by[i] then
          if bound then
            blocking = blocking + 1
          else
            own, count = own + 1, own + 1
          end
          counted[#counted + 1] = id
          counted[#counted + 1] = (blocking > 0 or unrun ~= '') and string.format('%.0f %.0f%s', own, blocking, unrun) or own
        end
        local wait = math.max(delay, wait_of(count))
        seen[id], codes[i], ended[#ended + 1], ended_names[#ended + 1] = true, 'O', id, names[i]
        if by[i] then
          codes[i], into[#ended], stopped[#stopped + 1], whose[#whose + 1] = 'c', key.failed, id, by[i]
        elseif count > 0 and count >= most and marks[i] then
          anew[#anew + 1], is_anew[#is_anew + 1] = id, true
        elseif count > 0 and count >= most then
          codes[i], into[#ended], spent[#spent + 1], seen[id] = 'f', key.failed, id, count
        elseif wait > 0 then
          dues[#dues + 1], dues[#dues + 2], soonest = now + wait, id, math.min(soonest, now + wait)
        else
          into[#ended], back[#back + 1], back_names[#back + 1] = ready.entry(names[i]), id, names[i]
        end
      end
    end
    if #ended > 0 then
      -- a lease ends only after its outcome is written: so a call that is refused half-way loses nothing
      some('HSET', key.releases, counted)
      for i = 1, given.why and #counted or 0, 2 do failures.keep(counted[i], given.why) end
      local moved, moved_names = rerun.run_again(anew, is_anew, {})
      for i = 1, #moved do back[#back + 1], back_names[#back + 1] = moved[i], moved_names[i] end
      rerun.renew(ended) -- the run that is given back goes on with what was put meanwhile
      for _, id in ipairs(spent) do
        failures.log(id, 'released ' .. seen[id] .. ' times by its handler; let it return Retry or GiveUp, or allow '
          .. 'more with max_releases')
      end
      if #dues > 0 then
        call('ZADD', key.scheduled, unpack(dues))
        wake.rouse(soonest)
      end
      cancel.fail(stopped, whose, {given.record})
      for i = 1, #ended do
        if into[i] then
          call('SMOVE', key.in_progress, into[i], ended[i])
        else
          call('SREM', key.in_progress, ended[i])
        end
      end
      leases.drop(ended)
      count_up(key.stats, 'released', #ended)
      failures.spent(spent)
      ready.depart(ended, ended_names, 0, 0)
      ready.arrive(back, back_names)
      for i = 1, block_ms > 0 and #ended or 0 do
        if ended_names[i] then ready.block(ended_names[i], now + block_ms, string.match(tokens[1], '^[^#]*')) end
      end
      ready.turn()
    end
    return calls.settle(args[1], codes, #ended)
  end)
end
