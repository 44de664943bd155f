-- answered_before: the reply to a call that is sent again although it was carried out; nil for any other call
local function answered_before(call_id, ids)
  if not was_called(call_id) then return nil end
  called_again(call_id)
  local where = find_all(ids)
  for i = 1, #ids do
    where[i] = where[i] or 'A'
  end
  return table.concat(where)
end
