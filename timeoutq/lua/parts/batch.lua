-- batch: tasks whose ends are counted together; when all of them have ended, one more task becomes ready, the batch's callback. A queue
-- uses this as soon as a put has named a batch
-- batches     of each batch its record: words with blanks between them. 1 state: o open, s sealed, e ended, b broken: it has ended, and
--             its callback went to failed, because a task was not done   2 the callback becomes ready when all tasks have e ended, or
--             are d done; - while the batch is open   3 for how many ms the batch is kept after its end   4 when the state changed, or
--             a task joined, ms   5 a digest of the call that has sealed it, or -   6 the callback's id, if there is a callback
-- batch:NAME  all tasks of a batch, each with its place, from 1 on; 10^9 is added when the task is done, and 2 * 10^9 when it has ended
--             in any other way
-- batch_of    of each task that has not ended since it joined a batch: the names of its batches
-- From the seal on, the callback is in `scheduled`, and due in the year 9999: so it is in one state, like any other task. Whoever ends the
-- last task of the batch makes the callback due. Until then, no put changes the callback.
-- PARTS log wake switch
local DONE, LOST, WAITS = 1000000000, 2000000000, 253370764800000

-- batch_key: the name of the key with the tasks of a batch. No other place makes such a name
local function batch_key(name)
  return key('batch:' .. name)
end

-- unnamed: what is wrong with the name of a batch, as an error; nil if nothing is
local function unnamed(name)
  if #name <= 64 and string.find(name, '^[%w._:-]+$') then return nil end
  return {err = 'BATCH the name of a batch is 1 to 64 of A-Z a-z 0-9 . _ : -'}
end

-- read_batch: the record that a text holds; nil if it cannot be read
local function read_batch(text)
  local state, on, keep, at, rev, callback = string.match(text or '', '^([oseb]) ([ed-]) (%d+) (%d+) (%S+) ?(.*)$')
  if not state or #keep > 15 or #at > 15 then return nil end
  return {state = state, on = on, keep = tonumber(keep), at = tonumber(at), rev = rev, callback = callback}
end

local function write_batch(name, one)
  local line = string.format('%s %s %.0f %.0f %s ', one.state, one.on, one.keep, now, one.rev)
  redis.call('HSET', key('batches'), name, line .. one.callback)
end

-- batch_counts: how many tasks a batch has, how many of them have not ended, and how many have ended but not as done
local function batch_counts(name)
  local set, call = batch_key(name), redis.pcall
  local all, open, lost = call('ZCARD', set), call('ZCOUNT', set, '-inf', '(1000000000'), call('ZCOUNT', set, '2000000000', '+inf')
  if type(all) ~= 'number' then return 0, 0, 0 end -- a key of a foreign type
  return all, open, lost
end

-- tell_callbacks: where[i] is the state of ids[i]; a task that is scheduled, and is the callback of a batch that has not ended, gets the
-- letter b instead of s
local function tell_callbacks(ids, where)
  local dues
  for i = 1, #ids do
    if where[i] == 's' then
      dues = dues or redis.call('ZMSCORE', key('scheduled'), unpack(ids))
      if moment(dues[i]) == WAITS then where[i] = 'b' end
    end
  end
end

-- fail_callback: the callback of a batch will not become ready; gives true if it was waiting for the batch
local function fail_callback(id, message)
  if id == '' or moment(redis.call('ZSCORE', key('scheduled'), id)) ~= WAITS then return false end
  redis.call('SADD', key('failed'), id)
  log_error(id, 'gave up: ' .. message)
  rarely('note_kinds')({id})
  redis.call('ZREM', key('scheduled'), id)
  count_up(stats, 'gave_up', 1)
  return true
end

-- close_batch: if a batch is sealed and all of its tasks have ended, end it. `broken` collects the callbacks that went to failed
local function close_batch(name, broken)
  local one = read_batch(redis.call('HGET', key('batches'), name))
  if not one or one.state ~= 's' then return end
  local all, open, lost = batch_counts(name)
  if open > 0 then return end
  local fails = one.on == 'd' and lost > 0
  if fails and fail_callback(one.callback, string.format('%.0f of the %.0f tasks of batch %s are not done', lost, all, name)) then
    broken[#broken + 1] = one.callback
  elseif not fails and one.callback ~= '' and moment(redis.call('ZSCORE', key('scheduled'), one.callback)) == WAITS then
    redis.call('ZADD', key('scheduled'), now, one.callback)
    rouse(now)
  end
  one.state = fails and 'b' or 'e'
  write_batch(name, one)
  redis.call('PEXPIRE', batch_key(name), math.max(1, one.keep))
end

-- end_in_batches: these tasks have ended, `well` if they are done: they leave the batches in which they are. Gives the callbacks of
-- batches that went to failed, for these have ended, too
local function end_in_batches(ids, well)
  local of, tasks_of, names, gone, broken = redis.call('HMGET', key('batch_of'), unpack(ids)), {}, {}, {}, {}
  for i = 1, #ids do
    if of[i] then gone[#gone + 1] = ids[i] end
    for name in string.gmatch(of[i] or '', '%S+') do
      if not tasks_of[name] then tasks_of[name], names[#names + 1] = {}, name end
      table.insert(tasks_of[name], ids[i])
    end
  end
  if #gone == 0 then return gone end
  redis.call('HDEL', key('batch_of'), unpack(gone))
  for i = 1, #names do
    local some, rows = tasks_of[names[i]], {}
    local places = redis.pcall('ZMSCORE', batch_key(names[i]), unpack(some))
    for k = 1, #places do
      local at = number(places[k])
      if at and at < DONE then rows[#rows + 1], rows[#rows + 2] = string.format('%.0f', at + (well and DONE or LOST)), some[k] end
    end
    if #rows > 0 then
      redis.call('ZADD', batch_key(names[i]), unpack(rows))
      close_batch(names[i], broken)
    end
  end
  return broken
end

-- drop_batch: nothing is left of a batch; its tasks stay where they are
local function drop_batch(name)
  redis.call('UNLINK', batch_key(name))
  redis.call('HDEL', key('batches'), name)
  if redis.call('EXISTS', key('batches'), key('batch_of')) == 0 then use('batches', false) end
end
