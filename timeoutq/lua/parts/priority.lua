-- priority: on a polite queue, the task with the highest priority is the next of its host. A queue uses this as soon as a put has
-- given a priority; tasks without one have 0
-- priorities  the priority of each task that has one, a whole number from -1000 to 1000; kept also while the task is done
-- The score of a task in the lane of its host is the time at which the task became ready, in ms, minus 2^41 for each point of
-- priority. So the task with the highest priority goes first, and among equals the task that has waited longest
local point = 2199023255552 -- 2^41
local ahead_of, forget_priorities

-- read_priority: the priority that a word says; nil for a word that says none
local function read_priority(word)
  local found = word and string.find(word, '^%-?%d%d?%d?%d?$') and tonumber(word)
  if found and found >= -1000 and found <= 1000 then return found end
end

if uses then
  -- ahead_of: by how many ms each of these tasks goes before its time; nil on a queue without priorities
  function ahead_of(ids)
    if #ids == 0 or not has('priority') then return nil end
    local ahead = redis.call('HMGET', key('priorities'), unpack(ids))
    for i = 1, #ids do ahead[i] = (read_priority(ahead[i]) or 0) * point end
    return ahead
  end

  -- forget_priorities: these tasks have no priority any more
  function forget_priorities(ids)
    if has('priority') then redis.call('HDEL', key('priorities'), unpack(ids)) end
  end
end
