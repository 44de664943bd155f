-- replay: a call whose reply was lost is sent again under the same id and must not run twice. `calls` keeps the ids of
-- the calls of the last minute: one member a call that succeeded whole, `id:n` for each part of one that did not.
-- PARTS calls
local function judge(call_id, codes, lost)
  if lost > 0 then
    local whole = was_called(call_id)
    for i = 1, #codes do
      if codes[i] == 'L' and (whole or was_called(call_id .. ':' .. i)) then
        codes[i] = 'R'
      end
    end
  end
  return table.concat(codes)
end

local function remember(call_id, codes, lost)
  if lost == 0 then return note_call(call_id) end
  local members = {}
  for i = 1, #codes do
    if codes[i] == 'O' or codes[i] == 'f' then
      members[#members + 1] = now
      members[#members + 1] = call_id .. ':' .. i
    end
  end
  redis.call('ZADD', calls, unpack(members))
end

-- settle: the reply of the call, a letter per lease; a call that has ended leases is remembered
local function settle(call_id, codes, lost, ended)
  local letters = judge(call_id, codes, lost)
  if ended > 0 then remember(call_id, codes, lost) end
  return letters
end
