-- seal_batch: a batch takes no more tasks; when all of its tasks have ended, its callback becomes ready, which may be now. Or forget a batch.
-- KEYS  todos in_progress done failed scheduled done_at payload attempts crashes errors lock meta stats bell alarm
-- PARTS open sections mark add batch
-- SOUND stats alarm; batch_of batches; error_log traces trace_uses trace_texts trace_at
-- ARGV  1 call id, nonce   2 age of the call, ms   3 batch   4 on, e|d|x: the callback becomes ready when all tasks have e ended, or are d done; x forget
--       the batch   5 keep, ms: for how long the batch is kept after its end   6 digest: of all that the batch is sealed with   7.. sections
-- SECTIONS  callback=1 its id   payload=1 of the callback   group=1 of the callback   priority=1 of the callback
-- Reply letter: O done; U there is no such batch to forget
local name, on, digest = ARGV[3], ARGV[4], ARGV[6]
local given, refused = sections(7, ' callback=1 payload=1 group=1 priority=1')
if refused then return refused end
local callback, priorities, unfit = given.callback or '', nil, nil
if given.priority and given.callback then priorities, unfit = rarely('priorities_of')({callback}, given) end
if unfit then return unfit end
unfit = unnamed(name)
if unfit then return unfit end
local one = read_batch(redis.call('HGET', key('batches'), name))
redis.call('ZCARD', batch_key(name))
local where, broken = find_one(callback), {}
sound()
if on == 'x' then
  if not one then
    mark()
    return 'U'
  end
  even_when_full()
  if one.state == 's' and fail_callback(one.callback, 'batch ' .. name .. ' was forgotten') then tell_ended({one.callback}) end
  drop_batch(name)
  return 'O'
end
if one and one.state ~= 'o' then
  if one.rev ~= digest then
    return {err = 'BATCH batch ' .. name .. ' is sealed already, with another callback or other options: give this batch another name'}
  end
  mark()
  return 'O'
end
if given.callback then
  local shown = string.gsub(string.sub(callback, 1, 80), '%c', '?')
  if redis.call('ZSCORE', batch_key(name), callback) then
    return {err = 'BATCH task ' .. shown .. ' is a task of batch ' .. name .. ', and cannot be its callback, too: give the callback an id '
      .. 'of its own'}
  elseif where and where ~= 'd' and where ~= 'f' then
    return {err = 'BATCH task ' .. shown .. ' is in the queue already, and would run before the batch has ended: give the callback an id '
      .. 'of its own'}
  end
  given.payloads = given.payload and {given.payload}
  add({callback}, given, true, WAITS, priorities)
end
write_batch(name, {state = 's', on = on, keep = tonumber(ARGV[5]), rev = digest, callback = callback})
if not has('batches') then use('batches', true) end
if not schema then redis.call('HSETNX', meta, 'schema', '3') end
close_batch(name, broken)
if #broken > 0 then tell_ended(broken) end
return 'O'
