-- leases: who holds which task, and until when
-- owners  HASH: the token that holds each task in progress   leases  ZSET: until when, ms   runtime  HASH: the longest
--         that it may, ms; the queue uses `runtime` while a lease has such a limit
-- lock:ID STRING with a TTL: the token, for other programs to see
do
  -- read: the leases of a call, args[first..] = count, runs of: token, length, id * length; gives also where they end
  function leases.read(first)
    local count, at = tonumber(args[first]), first + 1
    if count == 1 then return {args[at + 2]}, {args[at]}, at + 3 end
    local ids, tokens = {}, {}
    while #ids < count do
      local token, last = args[at], at + 1 + tonumber(args[at + 1])
      for i = at + 2, last do
        ids[#ids + 1], tokens[#ids + 1] = args[i], token
      end
      at = last + 1
    end
    return ids, tokens, at
  end

  -- mine: which of the ids are still leased to their tokens; late is not lost while nobody took the task back
  function leases.mine(ids, tokens)
    local held = call('HMGET', key.owners, unpack(ids))
    for i = 1, #ids do held[i] = held[i] == tokens[i] end
    return held
  end

  function leases.locks_of(ids)
    local locks = {}
    for i = 1, #ids do
      locks[i] = prefix .. 'lock:' .. ids[i]
    end
    return locks
  end

  -- set: set keys to values, or all to one value, for a time, ms: in one command, if the server has MSETEX (Valkey 9.1,
  -- Redis 8.4) and the user may call it, or one by one. Those that `are_old` are there, unless they have run out.
  -- `several`: has the server MSETEX? nil: not asked
  local several
  function leases.set(names, values, ms, are_old)
    local allowed, one = false, type(values) == 'string' and values
    if #names > 2 and several ~= false then
      several, allowed = pcall(may, 'MSETEX', 1, names[1], one or values[1])
    end
    if not (several and allowed) then
      for i = 1, #names do
        if not are_old or quiet('PEXPIRE', names[i], ms) == 0 then quiet('PSETEX', names[i], ms, one or values[i]) end
      end
      return
    end
    local words = {#names}
    for i = 1, #names do words[2 * i], words[2 * i + 1] = names[i], one or values[i] end
    words[#words + 1], words[#words + 2] = 'PX', ms
    quiet('MSETEX', unpack(words))
  end

  -- lock: set the locks of tasks to their tokens, or to one token, for a time, ms
  function leases.lock(ids, tokens, ms, are_old)
    leases.set(leases.locks_of(ids), tokens, ms, are_old)
  end

  -- drop: forget the leases on the ids, and all that ends with them
  function leases.drop(ids)
    if #ids == 0 then return end
    call('DEL', unpack(leases.locks_of(ids)))
    call('ZREM', key.leases, unpack(ids))
    call('HDEL', key.owners, unpack(ids))
    if has('runtime') then call('HDEL', key.runtime, unpack(ids)) end
    cancel.forget(ids)
    -- progress  of each task whose handler says how far it is: when, ms; how much is done, and of how much, or -; and a
    --           text
    if has('progress') then call('HDEL', key.progress, unpack(ids)) end
  end

  -- workers: how many workers have given a sign of life within the last half minute, in which three are due
  function leases.workers()
    return call('ZCOUNT', key.workers, now - 30000, '+inf')
  end

  -- longest: note the longest lease that the queue gave, ms
  function leases.longest(lease_ms)
    if lease_ms > number(setting.lease_ms, 0) then call('HSET', key.meta, 'lease_ms', lease_ms) end
  end

  -- run_id: names this run of the server; it changes with a restart or a failover. Empty where INFO is not allowed
  function leases.run_id()
    local info = try('INFO', 'server')
    return type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
  end

  -- too_long: a clock that stepped back made a lease longer than anybody asked for; requeue_expired cuts it
  function leases.too_long(longest)
    local last = call('ZRANGE', key.leases, -1, -1, 'WITHSCORES')
    return (moment(last[2]) or math.huge) > now + longest + 1000
  end

  -- grace: until when nothing is taken back after a restart, a failover or a jump of the clock: a minute at most
  function leases.grace(longest, jumped)
    local known = call('HMGET', key.meta, 'run_id', 'grace_until')
    local run, ends, last = leases.run_id(), number(known[2], 0), now + math.min(longest, 60000)
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

  -- crash: leases of the owners `was` ended without an answer: their tasks are ready again, or go to failed. Gives how
  -- many are ready again or were cancelled, and the ids of the others
  function leases.crash(ids, was, reason)
    local most, counts, names = number(setting.max_crashes, 5), call('HMGET', key.crashes, unpack(ids)), ready.hosts_of(ids)
    local again, again_names, spent, stopped, whose, fields, lines = {}, {}, {}, {}, {}, {}, {}
    local by, marks, last, anew = cancel.by(ids), rerun.marks_of(ids), {}, {}
    -- a task that somebody took out of in_progress by hand comes back, if no state has it
    local where = find.all(ids)
    for i = 1, #ids do
      counts[i] = number(counts[i], 0) + 1
      lines[i] = reason .. ' (crash ' .. counts[i] .. ' of ' .. most .. '; it was leased to ' .. (was[i] or '?') .. ')'
      last[i] = marks[i] and counts[i] >= most
      if last[i] then failures.log(ids[i], lines[i]) end
    end
    rerun.run_again(ids, last, anew)
    rerun.renew(ids) -- the next run has what was put meanwhile
    for i = 1, #ids do
      local id = ids[i]
      local over = not by[i] and counts[i] >= most
      local into = (over or by[i]) and key.failed or ready.entry(names[i])
      local moved = anew[i] or call('SMOVE', key.in_progress, into, id) == 1 or not where[i] and call('SADD', into, id) == 1
      if moved and by[i] then
        stopped[#stopped + 1], whose[#whose + 1] = id, by[i]
      elseif moved and over and not anew[i] then
        spent[#spent + 1] = id
      elseif moved then
        again[#again + 1], again_names[#again + 1] = id, names[i]
      end
      if moved and has('records') then results.note(id, false, over and not anew[i] and 'X' or 'x', was[i], reason) end
      if moved and not anew[i] then
        fields[#fields + 1], fields[#fields + 2] = id, counts[i]
      else
        by[i] = true
      end
    end
    -- before the hosts have their turn: a task of a banned host fails there, with the ban as its error
    some('HSET', key.crashes, fields)
    for i = 1, #ids do
      if not by[i] then failures.log(ids[i], (counts[i] >= most and 'gave up: ' or '') .. lines[i]) end
    end
    leases.drop(ids)
    ready.depart(ids, names, 0, 1)
    ready.arrive(again, again_names)
    ready.turn()
    cancel.fail(stopped, whose)
    failures.spent(spent)
    if has('records') then results.list(spent) end
    return #again + #stopped, spent
  end
end
