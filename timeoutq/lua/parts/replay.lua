-- replay: a call whose reply was lost is sent again under the same id and must not run twice. `calls` keeps the ids of
-- the calls of the last minute: one member a call that succeeded whole, `id:n` for each part of one that did not.
-- PARTS calls
-- settle_some: settle() where `lost` leases were not this token's: those that this very call has ended before are told apart
local function settle_some(call_id, codes, ended)
  local whole, members = was_called(call_id), {}
  for i = 1, #codes do
    if codes[i] == 'O' or codes[i] == 'k' or codes[i] == 'f' or codes[i] == 'c' then
      members[#members + 1], members[#members + 2] = now, call_id .. ':' .. i
    elseif codes[i] == 'L' and (whole or was_called(call_id .. ':' .. i)) then
      codes[i] = 'R'
      if has('durable') and not whole then called_again(call_id .. ':' .. i) end
    end
  end
  if has('durable') and whole then called_again(call_id) end
  if ended > 0 then redis.call('ZADD', calls, unpack(members)) end
  return table.concat(codes)
end

-- settle: the reply of the call, a letter per lease; a call that has ended leases is remembered
local function settle(call_id, codes, lost, ended)
  if lost > 0 then return rarely('settle_some')(call_id, codes, ended) end
  if ended > 0 then note_call(call_id) end
  return table.concat(codes)
end
