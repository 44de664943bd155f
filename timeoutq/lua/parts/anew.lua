-- anew: a put with rerun wants that a run of each task begins after the put, with the payload of the put if it has one
-- PARTS switch raise
-- is_among: is this one of the tasks with rerun, which stand at the places `at`, {} for all places?
local function is_among(id, ids, at)
  for n = 1, #at > 0 and #at or #ids do
    if ids[#at > 0 and tonumber(at[n]) or n] == id then return true end
  end
  return false
end

-- newest_of: what a put does to the tasks with rerun, which stand at the places `at`, {} for all places: 'marked': the task is in
-- progress, and runs once more; 'up': it waits for a claim, and gets the payload; 'back': it is done, and comes back. Of such an id
-- the last of these places counts, also for priorities. `chosen` and `changes` are what the priorities of the put say: they lose what
-- they say of these ids. Gives, for each id, the place that counts, and what the put does to the tasks with rerun
local function newest_of(ids, where, at, chosen, changes)
  local newest, places, anew = {}, {}, {}
  for n = 1, #at > 0 and #at or #ids do
    local i = #at > 0 and tonumber(at[n]) or n
    newest[ids[i]] = i
  end
  for i = 1, #ids do
    local id, state = ids[i], where[i]
    places[id] = newest[id] or chosen[id] or places[id] or i
    if newest[id] then changes[i] = nil end
    if newest[id] == i then anew[i] = state == 'p' and 'marked' or state == 'd' and 'back' or state and state ~= 'f' and state ~= 'b' and 'up' or nil end
  end
  return places, anew
end

-- put_anew: write the marks and the payloads that newest_of() has found, and the priorities, if the put gives some: higher or lower
-- ones. Done tasks come back in add_some()
local function put_anew(ids, where, changes, bodies, priorities)
  local raised, bodies_of = {}, {}
  for i = 1, #ids do
    local mark = changes[i] == 'marked' and redis.call('HGET', key('rerun'), ids[i]) or ''
    local body = bodies[i] or string.match(mark, '^%S+ 1(.*)$')
    if changes[i] and priorities and priorities[i] then
      raised[i], bodies_of[i] = changes[i], body
    elseif changes[i] == 'marked' then
      local priority = string.match(mark, '^%-?%d+') or has('priority') and redis.call('HGET', key('priorities'), ids[i]) or '0'
      if not has('rerun') then use('rerun', true) end
      redis.call('HSET', key('rerun'), ids[i], priority .. ' ' .. (body and '1' .. body or '0'))
    elseif changes[i] == 'up' and body then
      redis.call('HSET', payload, ids[i], body)
    end
  end
  if next(raised) then raise(ids, where, priorities, raised, redis.call('HMGET', key('priorities'), unpack(ids)), bodies_of) end
end
