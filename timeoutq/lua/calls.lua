-- calls: a call whose reply was lost is sent again under the same id, and must not run twice
-- calls  of the last minute, and some that are older and do not count: when each was made, ms. One member for a call
--        that was carried out whole, `id:n` for each lease of one that was not

-- note: remember this call. Every sixteenth call clears away some old ones, more than come meanwhile
function calls.note(call_id)
  call('ZADD', key.calls, now, call_id)
  if string.sub(call_id, -1) == '0' then
    some('ZREM', key.calls, call('ZRANGEBYSCORE', key.calls, '-inf', now - 60000, 'LIMIT', 0, 200))
  end
end

-- again: remember a call for another minute; a WAIT behind this waits for what the first one wrote, too
function calls.again(member)
  call('ZREM', key.calls, member)
  call('ZADD', key.calls, now, member)
end

function calls.was(call_id)
  local at = call('ZSCORE', key.calls, call_id)
  return at and (moment(at) or 0) > now - 60000
end

-- settle: the reply of a call that has ended leases: R in the place of L for those that this very call ended before
function calls.settle(call_id, codes, ended)
  local reply = table.concat(codes)
  if not string.find(reply, 'L', 1, true) then
    if ended > 0 then calls.note(call_id) end
    return reply
  end
  local before, members = calls.was(call_id), {}
  for i = 1, #codes do
    if string.find('Okfc', codes[i], 1, true) then
      members[#members + 1], members[#members + 2] = now, call_id .. ':' .. i
    elseif codes[i] == 'L' and (before or calls.was(call_id .. ':' .. i)) then
      codes[i] = 'R'
      if has('durable') and not before then calls.again(call_id .. ':' .. i) end
    end
  end
  if has('durable') and before then calls.again(call_id) end
  if ended > 0 then call('ZADD', key.calls, unpack(members)) end
  return table.concat(codes)
end

-- replayed: was this call sent before, and carried out?
function calls.replayed(call_id)
  if args[2] == '0' or not calls.was(call_id) then return false end
  if has('durable') then calls.again(call_id) end
  return true
end

-- answered_before: the reply to a put that is sent again although it was carried out; nil for any other call
function calls.answered_before(call_id, ids)
  if args[2] == '0' or not calls.was(call_id) then return nil end
  calls.again(call_id)
  local where = find.all(ids)
  for i = 1, #ids do where[i] = where[i] or 'A' end
  return table.concat(where)
end

-- mark: on a durable queue each call writes: a WAIT waits only for what its own connection has written
function calls.mark()
  if has('durable') then call('HSET', key.meta, 'mark', now) end
end
