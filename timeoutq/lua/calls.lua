-- calls: the ids of the calls of the last minute, and some that are older and do not count: every sixteenth call clears
-- some of these away, more than come meanwhile, but not so many that other clients wait
do
  function calls.note(call_id)
    call('ZADD', key.calls, now, call_id)
    if string.sub(call_id, -1) == '0' then
      local old = call('ZRANGEBYSCORE', key.calls, '-inf', now - 60000, 'LIMIT', 0, 200)
      if #old > 0 then call('ZREM', key.calls, unpack(old)) end
    end
  end

  -- called_again: a call that was carried out before is remembered for another minute. This writes, so that a WAIT behind it waits for
  -- what the first one wrote, too, whichever connection the first one came by
  function calls.again(member)
    call('ZREM', key.calls, member)
    call('ZADD', key.calls, now, member)
  end

  function calls.was(call_id)
    local at = call('ZSCORE', key.calls, call_id)
    return at and (moment(at) or 0) > now - 60000
  end

  -- replay: a call whose reply was lost is sent again under the same id and must not run twice. `calls` keeps the ids of
  -- the calls of the last minute: one member a call that succeeded whole, `id:n` for each part of one that did not.
  -- settle_some: settle() where `lost` leases were not this token's: those that this very call has ended before are told apart
  local function settle_some(call_id, codes, ended)
    local whole, members = calls.was(call_id), {}
    for i = 1, #codes do
      if codes[i] == 'O' or codes[i] == 'k' or codes[i] == 'f' or codes[i] == 'c' then
        members[#members + 1], members[#members + 2] = now, call_id .. ':' .. i
      elseif codes[i] == 'L' and (whole or calls.was(call_id .. ':' .. i)) then
        codes[i] = 'R'
        if has('durable') and not whole then calls.again(call_id .. ':' .. i) end
      end
    end
    if has('durable') and whole then calls.again(call_id) end
    if ended > 0 then call('ZADD', key.calls, unpack(members)) end
    return table.concat(codes)
  end

  -- settle: the reply of the call, a letter per lease; a call that has ended leases is remembered
  function calls.settle(call_id, codes, lost, ended)
    if lost > 0 then return settle_some(call_id, codes, ended) end
    if ended > 0 then calls.note(call_id) end
    return table.concat(codes)
  end

  -- answered_before: the reply to a call that is sent again although it was carried out; nil for any other call
  function calls.answered_before(call_id, ids)
    if not calls.was(call_id) then return nil end
    calls.again(call_id)
    local where = find.all(ids)
    for i = 1, #ids do
      where[i] = where[i] or 'A'
    end
    return table.concat(where)
  end

  -- mark: on a durable queue, a call that has nothing to write writes all the same: WAIT waits for what its own connection has
  -- written, so that a WAIT behind it waits for the call, too, that has changed all of this before
  function calls.mark()
    if not has('durable') then return end
    call('HSET', key.meta, 'mark', now)
  end
end
