-- answered_before: the reply to a call that is sent again although it was carried out; nil for any other call. It writes
-- again, so that a WAIT behind it waits for the first one too, whichever connection that came by
local function answered_before(call_id, ids)
  if not was_called(call_id) then return nil end
  redis.call('ZREM', calls, call_id)
  redis.call('ZADD', calls, now, call_id)
  local where = find_all(ids)
  for i = 1, #ids do
    where[i] = where[i] or 'A'
  end
  return table.concat(where)
end
