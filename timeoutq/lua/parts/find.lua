-- find: where tasks are now
-- PARTS ready done
-- find_one: the letter of the state that holds an id, or nil
local function find_one(id)
  return redis.call('SISMEMBER', todos, id) == 1 and 't' or redis.call('SISMEMBER', in_progress, id) == 1 and 'p'
    or is_done(id) and 'd' or redis.call('SISMEMBER', failed, id) == 1 and 'f'
    or waiting and redis.call('SISMEMBER', waiting, id) == 1 and 'w' or redis.call('ZSCORE', scheduled, id) and 's' or nil
end

-- find_all: the same of many; and how many are anywhere
local function find_all(ids)
  if #ids == 1 then
    local state = find_one(ids[1])
    return {state}, state and 1 or 0
  end
  local where, known = {}, 0
  -- to ask for a few is as cheap as to ask whether the set is there at all
  local many = #ids > 8
  local function mark(letter, set)
    if many and set and redis.call('EXISTS', set) == 0 then return end
    local hits = set and redis.call('SMISMEMBER', set, unpack(ids)) or done_among(ids)
    if not hits[1] then return end
    for i = 1, #ids do
      if hits[i] == 1 then where[i], known = letter, known + 1 end
    end
  end
  mark('t', todos)
  mark('p', in_progress)
  mark('d')
  mark('f', failed)
  if waiting then mark('w', waiting) end
  if not many or redis.call('EXISTS', scheduled) == 1 then
    local due = redis.call('ZMSCORE', scheduled, unpack(ids))
    for i = 1, #ids do
      if due[i] then where[i], known = 's', known + 1 end
    end
  end
  return where, known
end
