-- restore_batch: bring a batch of an export in: some of its tasks, with how they have ended, and at last the seal; what
-- is there stays, so it may run again.
-- ARGS  1 call id, nonce   2 age of the call, ms   3 batch   4 on, e|d|-: the callback becomes ready when all tasks
--       have e ended, or are d done; - the batch is not sealed now   5 keep, ms: for how long the batch is kept after
--       its end   6 digest: of the call that has sealed the batch   7 callback: its id, or nothing   8.. count, id *
--       count, ends letters: of their ends, o not ended d done l ended in another way
-- Reply how many tasks have joined, number or -1: -1 the queue has sealed a batch of this name with another callback or
--       other options
verb('restore_batch', {}, function()
  local name, on, digest, callback = args[3], args[4], args[6], args[7]
  local ids, at = tasks.read(8)
  local letters, ends = args[at], {}
  if not letters or #letters ~= #ids or string.find(letters, '[^odl]') then
    return {err = 'ENDS are to be ' .. #ids .. ' letters of o d l'}
  end
  local unfit = batches.unnamed(name)
  if unfit then return unfit end
  local one = batches.get(name)
  if one and one.state ~= 'o' then
    if one.state ~= 's' and one.rev == digest and batches.waits(callback) then
      -- its tasks have ended, and so has the callback: the one that the file has brought in would wait for ever
      call('ZREM', key.scheduled, callback)
      tasks.forget({callback})
      groups.forget({callback})
      count_up(key.stats, 'forgotten', 1)
    else
      calls.mark()
    end
    return on ~= '-' and one.rev ~= digest and -1 or 0
  end
  for i = 1, #ids do ends[i] = ({d = batches.DONE, l = batches.LOST})[string.sub(letters, i, i)] end
  local known, joined = nil, 0
  if #ids > 0 then known, unfit = batches.may_join(name, ids, ends) end
  if unfit then return unfit end
  if known then joined = batches.join(name, ids, known, ends) end
  if on ~= '-' then
    batches.seal(name, on, args[5], digest, callback)
  elseif joined == 0 then
    calls.mark()
  end
  return joined
end)
