-- locks: the keys that show leases to other programs, one for each task that is held
-- locks_of: the names of these tasks' locks; `lock`, one of KEYS, is what they begin with. No other place makes such a name
local function locks_of(ids)
  local locks = {}
  for i = 1, #ids do
    locks[i] = lock .. ids[i]
  end
  return locks
end
