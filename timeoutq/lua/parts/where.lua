-- where: the letters of all the states that hold each id, its deadline and its owner
local function where_all(ids)
  local states = {}
  for i = 1, #ids do states[i] = '' end
  local function mark(key, letter)
    if redis.call('EXISTS', key) == 0 then return end
    local hits = redis.call('SMISMEMBER', key, unpack(ids))
    for i = 1, #ids do
      if hits[i] == 1 then states[i] = states[i] .. letter end
    end
  end
  mark(in_progress, 'p')
  mark(todos, 't')
  mark(prefix .. 'waiting', 'w')
  mark(done, 'd')
  mark(failed, 'f')
  local due = redis.call('ZMSCORE', scheduled, unpack(ids))
  for i = 1, #ids do
    if due[i] then states[i] = states[i] .. 's' end
  end
  return states, redis.call('ZMSCORE', leases, unpack(ids)), redis.call('HMGET', owners, unpack(ids))
end
