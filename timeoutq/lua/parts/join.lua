-- join: tasks that a put brings, or finds, become tasks of a batch
-- PARTS batch find
-- may_join: what is known of the batch, and of these tasks in it. If they cannot join, gives nil and an error: the verb replies with the
-- error and writes nothing. ends[i] is how a task has ended for the batch elsewhere: DONE or LOST; nil where that is not known
local function may_join(name, ids, ends)
  local unfit = unnamed(name)
  if unfit then return nil, unfit end
  local one = read_batch(redis.call('HGET', key('batches'), name))
  local places, of = redis.call('ZMSCORE', batch_key(name), unpack(ids)), redis.call('HMGET', key('batch_of'), unpack(ids))
  local size, new = redis.call('ZCARD', batch_key(name)), 0
  for i = 1, #ids do
    if not places[i] then
      local _, many = string.gsub(of[i] or '', '%S+', '')
      new = new + 1
      if many >= 4 and not (ends and ends[i]) then
        return nil, {err = 'BATCH task ' .. string.gsub(string.sub(ids[i], 1, 80), '%c', '?') .. ' is in four batches that have not '
          .. 'ended, and no task can be in more'}
      end
    end
  end
  if new > 0 and one and one.state ~= 'o' then
    return nil, {err = 'BATCH batch ' .. name .. ' is sealed, and takes no more tasks: put them into a batch of another name'}
  elseif size + new > 1000000 then
    return nil, {err = 'BATCH batch ' .. name .. ' would have more than 1000000 tasks: divide it into several batches'}
  end
  return {places = places, of = of, size = size}
end

-- join: the tasks are in the queue, and become tasks of the batch. One that is done or failed already has ended. Gives how many are new
local function join(name, ids, known, ends)
  local where, rows, lines, size = find_all(ids), {}, {}, known.size
  local joined = {}
  for i = 1, #ids do
    local id = ids[i]
    if not known.places[i] and not joined[id] then
      joined[id], size = true, size + 1
      local ended = ends and ends[i] or where[i] == 'd' and DONE or (where[i] == 'f' or not where[i]) and LOST or 0
      rows[#rows + 1], rows[#rows + 2] = string.format('%.0f', size + ended), id
      if ended == 0 then lines[#lines + 1], lines[#lines + 2] = id, (known.of[i] and known.of[i] .. ' ' or '') .. name end
    end
  end
  if #rows == 0 then return 0 end
  write_batch(name, {state = 'o', on = '-', keep = 0, rev = '-', callback = ''})
  redis.call('ZADD', batch_key(name), unpack(rows))
  if #lines > 0 then redis.call('HSET', key('batch_of'), unpack(lines)) end
  if not has('batches') then use('batches', true) end
  return #rows / 2
end
