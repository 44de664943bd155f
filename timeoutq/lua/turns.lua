-- turns: what cleaners do for the hosts of a polite queue, and what others ask of their turns
-- due_turns: hosts whose turn it is hand over tasks; gives how many tasks, and whether there may be more at once
do
  function hosts.due_turns(n)
    if not polite then return 0, false end
    local names = call('ZRANGEBYSCORE', key.hosts, '-inf', now, 'LIMIT', 0, n)
    if #names == 0 then return 0, false end
    hosts.load(names)
    local handed, more = ready.turn()
    return handed, more or #names == n
  end

  -- far_turns: a clock that stepped back leaves hosts whose turn is far away; only a blocked host keeps such a turn. Says whether
  -- there was one that got an earlier turn
  function hosts.far_turns(n)
    if not polite then return false end
    local beyond = now + number(string.match(rules, '^%d+')) + 1000
    local far = call('ZRANGEBYSCORE', key.hosts, '(' .. beyond, '(+inf', 'WITHSCORES', 'LIMIT', 0, n)
    if #far == 0 then return false end
    local names = {}
    for i = 1, #far, 2 do names[#names + 1] = far[i] end
    hosts.load(names)
    ready.turn()
    return call('ZSCORE', key.hosts, far[1]) ~= far[2]
  end

  -- converting: is `convert` to be called, because it has not come to its end?
  function hosts.converting()
    return call('HEXISTS', key.meta, 'converting') == 1 or polite and string.sub(rules, -3) == 'off'
  end

  -- next_turn: when the next host has its turn, ms; nil while none waits for a time
  function hosts.next_turn()
    if not uses then return nil end
    return moment(call('ZRANGEBYSCORE', key.hosts, '-inf', '(+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
  end

  -- counts: how many tasks wait, of how many hosts. Tasks are counted on every queue: a foreign hand may have deleted the
  -- settings, and nothing that waits may be hidden
  function hosts.counts()
    return call('SCARD', key.waiting), has('politeness') and call('ZCARD', key.hosts) or 0
  end

  -- stranded: does any task wait, and will each that waits be handed over? This is what `drained` asks after it has found nothing
  -- that is ready, held or scheduled
  -- turn_before: will a host have a turn before this time?
  function hosts.turn_before(before)
    return polite and call('ZCOUNT', key.hosts, '-inf', '(' .. before) > 0
  end

  -- look_at_waiting: does each waiting task have a reason to wait? Replies as `drained` does
  function hosts.look_at_waiting(cursor)
    if call('EXISTS', key.waiting) == 0 then return {1, '0'} end
    -- on a queue that is no longer polite, nobody hands over the waiting tasks; on one that is about to end being so, they come
    if not polite or string.sub(rules, -3) == 'off' then return {0, '0'} end
    local page = call('SSCAN', waiting, cursor, 'COUNT', 500)
    local ids = page[2]
    local names = #ids > 0 and ready.hosts_of(ids) or {}
    local known = hosts.load(names)
    for i = 1, #ids do
      local one = names[i] and known[names[i]]
      -- two reasons to wait are accepted: the host's budget is used up, so the task will not run by itself; or the host has its turn
      -- after `before`
      local turn_at = one and call('ZSCORE', key.hosts, one.name)
      local later = turn_at and turn_at ~= 'inf'
      local spent = one and one.budget and one.visits >= one.budget
      if not (turn_at and (later or spent) and call('ZSCORE', named('host:' .. one.name), ids[i])) then
        return {0, '0'}
      end
    end
    return {1, page[1]}
  end
end
