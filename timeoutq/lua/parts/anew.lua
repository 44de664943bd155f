-- anew: a put with rerun wants that a run of each task begins after the put, with the payload of the put if it has one
-- PARTS switch raise
-- newest_of: for each id, the place that counts: the last one. And what the put does to the task at that place: 'marked': it is in
-- progress, and runs once more; 'up': it waits for a claim, and gets the payload; 'back': it is done, and comes back
local function newest_of(ids, where)
  local chosen, changes = {}, {}
  for i = 1, #ids do chosen[ids[i]] = i end
  for _, i in pairs(chosen) do
    local state = where[i]
    changes[i] = state == 'p' and 'marked' or state == 'd' and 'back' or state and state ~= 'f' and 'up' or nil
  end
  return chosen, changes
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
