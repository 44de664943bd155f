-- items: read the leases of a call, the words first.. = count, then runs of: token, length, id * length
do
  function leases.read(first)
    local ids, tokens = {}, {}
    local count, at = tonumber(args[first]), first + 1
    while #ids < count do
      local token = args[at]
      for i = at + 2, at + 1 + tonumber(args[at + 1]) do
        ids[#ids + 1], tokens[#ids + 1] = args[i], token
      end
      at = at + 2 + tonumber(args[at + 1])
    end
    return ids, tokens, at
  end

  -- mine: which of the ids are still leased to their tokens; late is not lost while nobody took the task back
  function leases.mine(ids, tokens)
    local held, yes = call('HMGET', key.owners, unpack(ids)), {}
    for i = 1, #ids do
      yes[i] = held[i] == tokens[i]
    end
    return yes
  end

  -- locks: the keys that show leases to other programs, one for each task that is held
  -- locks_of: the names of these tasks' locks. No other place makes such a name
  function leases.locks_of(ids)
    local locks = {}
    for i = 1, #ids do
      locks[i] = prefix .. 'lock:' .. ids[i]
    end
    return locks
  end

  -- lock: set the locks of tasks for a time, ms: all in one command, if the server has MSETEX (Valkey 9.1, Redis 8.4) and the user may call
  -- it; or one by one. The locks of leases that `are_old` are there already, unless they have run out. `several` is false on a server
  -- without MSETEX, nil before the first look
  local several
  function leases.lock(ids, tokens, ms, are_old)
    local locks, allowed = leases.locks_of(ids), false
    if #ids > 1 and several ~= false then
      several, allowed = pcall(may, 'MSETEX', 1, locks[1], tokens[1])
    end
    if not (several and allowed) then
      for i = 1, #ids do
        if not are_old or quiet('PEXPIRE', locks[i], ms) == 0 then quiet('PSETEX', locks[i], ms, tokens[i]) end
      end
      return
    end
    local words = {#ids}
    for i = 1, #ids do words[2 * i], words[2 * i + 1] = locks[i], tokens[i] end
    words[#words + 1], words[#words + 2] = 'PX', ms
    quiet('MSETEX', unpack(words))
  end

  -- drop: forget the leases on the ids: lock keys, deadlines, owners, cancels, progress; and limits, unless the queue has none
  function leases.drop(ids, unlimited)
    if #ids == 0 then return end
    call('DEL', unpack(leases.locks_of(ids)))
    call('ZREM', key.leases, unpack(ids))
    call('HDEL', key.owners, unpack(ids))
    if not unlimited and call('EXISTS', key.runtime) == 1 then
      call('HDEL', key.runtime, unpack(ids))
    end
    cancel.forget(ids)
    progress.forget(ids)
  end

  -- grace: after a restart, a failover or a jump of the clock, live workers may extend first: for one lease, and for a
  -- minute at most. Gives until when nothing is taken back.
  function leases.grace(longest, jumped)
    local known = call('HMGET', key.meta, 'run_id', 'grace_until')
    local run, ends, last = server.run_id(), number(known[2], 0), now + math.min(longest, 60000)
    if jumped or (known[1] and known[1] ~= run) then
      ends = last
      call('HSET', key.meta, 'run_id', run, 'grace_until', ends)
      count_up(key.stats, jumped and 'clock_jumps' or 'restarts', 1)
    elseif ends > last then
      -- the clock stepped back during a grace, which must not become longer by that
      ends = last
      call('HSET', key.meta, 'grace_until', ends)
    end
    return ends
  end

  -- crashed: what becomes of tasks whose leases ended without an answer
  -- nowhere: is a task, which a foreign hand has taken out of in_progress, in no other state?
  local function nowhere(id)
    for _, set in ipairs({key.todos, key.failed, key.waiting}) do
      if call('SISMEMBER', set, id) == 1 then return false end
    end
    return not done.has(id) and not call('ZSCORE', key.scheduled, id)
  end

  -- crash: leases on `ids` ran out (`was` their owners). Back to todos, or to failed for those that did it too often, and for those that
  -- were cancelled; but a task that is to run once more never crashed too often. Returns how many went back or were cancelled, how many
  -- went to failed because of it, and the ids of the latter.
  function leases.crash(ids, was, reason)
    local max_crashes = number(setting.max_crashes, 5)
    local counts = call('HMGET', key.crashes, unpack(ids))
    local names = ready.hosts_of(ids)
    local again, again_names = {}, {}
    local gone, back, given_up, spent = {}, 0, 0, {}
    local fields, lines = {}, {}
    local by, stopped, whose = cancel.by(ids), {}, {}
    local held, lost = call('SMISMEMBER', key.in_progress, unpack(ids)), {}
    for i = 1, #ids do lost[i] = held[i] == 0 and nowhere(ids[i]) end
    local marks, last, anew = rerun.marks_of(ids), {}, {}
    local function told(i, count)
      return reason .. ' (crash ' .. count .. ' of ' .. max_crashes .. '; it was leased to ' .. (was[i] or '?') .. ')'
    end
    for i = 1, #ids do
      last[i] = marks[i] and number(counts[i], 0) + 1 >= max_crashes
      if last[i] then failures.log(ids[i], told(i, number(counts[i], 0) + 1)) end
    end
    rerun.run_again(ids, last, anew)
    rerun.renew(ids, rerun.marks_of(ids)) -- the next run has what was put meanwhile
    for i = 1, #ids do
      local id = ids[i]
      local count = number(counts[i], 0) + 1
      gone[#gone + 1] = id
      if anew[i] then
        back = back + 1
        again[back], again_names[back] = id, names[i]
      end
      local into = count >= max_crashes and key.failed or by[i] and key.failed or ready.entry(names[i])
      local moved = call('SMOVE', key.in_progress, into, id)
      if moved == 0 and lost[i] then moved = call('SADD', into, id) end
      if moved == 1 then
        fields[#fields + 1] = id
        fields[#fields + 1] = count
        local line = told(i, count)
        if by[i] then
          stopped[#stopped + 1], whose[#whose + 1] = id, by[i]
        elseif count >= max_crashes then
          given_up = given_up + 1
          spent[given_up] = id
          line = 'gave up: ' .. line
        else
          back = back + 1
          again[back], again_names[back] = id, names[i]
        end
        lines[#lines + 1] = not by[i] and {id, line} or nil
      end
    end
    -- before the hosts have their turn: a task of a banned host fails there, with the ban as its error
    if #fields > 0 then
      call('HSET', key.crashes, unpack(fields))
      for i = 1, #lines do
        failures.log(lines[i][1], lines[i][2])
      end
    end
    leases.drop(gone)
    ready.depart(gone, names, 0, 1)
    ready.arrive(again, again_names)
    ready.turn()
    if #stopped > 0 then cancel.fail(stopped, whose) end
    if given_up > 0 then
      kinds.note(spent)
      count_up(key.stats, 'gave_up', given_up)
      results.tell_ended(spent)
    end
    return back + #stopped, given_up, spent
  end
end
