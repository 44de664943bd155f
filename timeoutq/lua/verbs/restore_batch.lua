-- restore_batch: bring a batch of an export in: some of its tasks, with how they have ended, and at last the seal; what is there stays, so
-- it may run again.
-- ARGS  1 call id, nonce   2 age of the call, ms   3 batch   4 on, e|d|-: the callback becomes ready when all tasks have e ended, or are d done; - the batch
--       is not sealed now   5 keep, ms: for how long the batch is kept after its end   6 digest: of the call that has sealed the batch
--       7 callback: its id, or nothing   8.. count, id * count, ends letters: of their ends, o not ended d done l ended in another way
-- Reply how many tasks have joined, number or -1: -1 the queue has sealed a batch of this name with another callback or other options
verb('restore_batch', {}, function()
  local name, on, digest = args[3], args[4], args[6]
  local ids, at = tasks.read(8)
  local letters, ends = args[at], {}
  if not letters or #letters ~= #ids or string.find(letters, '[^odl]') then
    return {err = 'ENDS are to be ' .. #ids .. ' letters of o d l'}
  end
  local unfit = batches.unnamed(name)
  if unfit then return unfit end
  local one = batches.read(call('HGET', key.batches, name))
  if one and one.state ~= 'o' then
    local callback = {args[7]}
    local over = one.state ~= 's' and one.rev == digest and args[7] ~= ''
    if over and moment(call('ZSCORE', key.scheduled, args[7])) == batches.WAITS then
      -- its tasks have ended, and so has the callback: the one that the file has brought in would wait for ever
      call('ZREM', key.scheduled, args[7])
      call('HDEL', key.payload, args[7])
      failures.clear(callback)
      groups.forget(callback)
      priority.forget(callback)
      results.tell_ended(callback)
      count_up(key.stats, 'forgotten', 1)
    else
      calls.mark()
    end
    return on ~= '-' and one.rev ~= digest and -1 or 0
  end
  for i = 1, #ids do
    local letter = string.sub(letters, i, i)
    ends[i] = letter == 'd' and batches.DONE or letter == 'l' and batches.LOST or nil
  end
  local known, joined, broken = nil, 0, {}
  if #ids > 0 then known, unfit = batches.may_join(name, ids, ends) end
  if unfit then return unfit end
  if known then joined = batches.join(name, ids, known, ends) end
  if on == '-' then
    if joined == 0 then calls.mark() end
    return joined
  end
  batches.write(name, {state = 's', on = on, keep = tonumber(args[5]), rev = digest, callback = args[7]})
  if not has('batches') then settings.use('batches', true) end
  if not schema then call('HSETNX', key.meta, 'schema', '3') end
  batches.close(name, broken)
  if #broken > 0 then results.tell_ended(broken) end
  return joined
end)
