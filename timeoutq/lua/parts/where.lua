-- where: the letters of all the states that hold each id, its deadline and its owner
-- PARTS done
local function where_all(ids)
  local states = {}
  for i = 1, #ids do states[i] = '' end
  local function mark(hits, letter)
    for i = 1, #ids do
      if hits[i] == 1 then states[i] = states[i] .. letter end
    end
  end
  mark(redis.call('SMISMEMBER', in_progress, unpack(ids)), 'p')
  mark(redis.call('SMISMEMBER', todos, unpack(ids)), 't')
  mark(redis.call('SMISMEMBER', key('waiting'), unpack(ids)), 'w')
  mark(done_among(ids), 'd')
  mark(redis.call('SMISMEMBER', failed, unpack(ids)), 'f')
  local due = redis.call('ZMSCORE', scheduled, unpack(ids))
  for i = 1, #ids do
    if due[i] then states[i] = states[i] .. 's' end
  end
  return states, redis.call('ZMSCORE', leases, unpack(ids)), redis.call('HMGET', owners, unpack(ids))
end
