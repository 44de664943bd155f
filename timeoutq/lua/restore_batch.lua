-- restore_batch: bring a batch of an export in: some of its tasks, with how they have ended, and at last the seal; what is there stays, so
-- it may run again.
-- KEYS  todos in_progress done failed scheduled done_at payload attempts crashes errors lock meta stats bell alarm
-- PARTS open mark add join
-- SOUND stats alarm; batch_of batches payload attempts crashes errors releases groups; error_log traces trace_uses trace_texts trace_at
-- ARGV  1 call id, nonce   2 age of the call, ms   3 batch   4 on, e|d|-: the callback becomes ready when all tasks have e ended, or are d done; - the batch
--       is not sealed now   5 keep, ms: for how long the batch is kept after its end   6 digest: of the call that has sealed the batch
--       7 callback: its id, or nothing   8.. count, id * count, ends letters: of their ends, o not ended d done l ended in another way
-- Reply how many tasks have joined, number or -1: -1 the queue has sealed a batch of this name with another callback or other options
local name, on, digest = ARGV[3], ARGV[4], ARGV[6]
local ids, at = read_ids(8)
local letters, ends = ARGV[at], {}
if not letters or #letters ~= #ids or string.find(letters, '[^odl]') then
  return {err = 'ENDS are to be ' .. #ids .. ' letters of o d l'}
end
local unfit = unnamed(name)
if unfit then return unfit end
local one = read_batch(redis.call('HGET', key('batches'), name))
if one and one.state ~= 'o' then
  local callback = {ARGV[7]}
  local over = one.state ~= 's' and one.rev == digest and ARGV[7] ~= ''
  if over and moment(redis.call('ZSCORE', scheduled, ARGV[7])) == WAITS then
    -- its tasks have ended, and so has the callback: the one that the file has brought in would wait for ever
    find_one('')
    sound()
    even_when_full()
    redis.call('ZREM', scheduled, ARGV[7])
    redis.call('HDEL', payload, ARGV[7])
    clear(callback)
    ungroup(callback)
    forget_priorities(callback)
    tell_ended(callback)
    count_up(stats, 'forgotten', 1)
  else
    mark()
  end
  return on ~= '-' and one.rev ~= digest and -1 or 0
end
for i = 1, #ids do
  local letter = string.sub(letters, i, i)
  ends[i] = letter == 'd' and DONE or letter == 'l' and LOST or nil
end
redis.call('ZCARD', batch_key(name))
local known, joined, broken = nil, 0, {}
if #ids > 0 then known, unfit = may_join(name, ids, ends) end
if unfit then return unfit end
find_one('')
sound()
if known then joined = join(name, ids, known, ends) end
if on == '-' then
  if joined == 0 then mark() end
  return joined
end
write_batch(name, {state = 's', on = on, keep = tonumber(ARGV[5]), rev = digest, callback = ARGV[7]})
if not has('batches') then use('batches', true) end
if not schema then redis.call('HSETNX', meta, 'schema', '3') end
close_batch(name, broken)
if #broken > 0 then tell_ended(broken) end
return joined
