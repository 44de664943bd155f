-- seal_batch: a batch takes no more tasks; when all of its tasks have ended, its callback becomes ready, which may be
-- now. Or forget a batch.
-- ARGS  1 call id, nonce   2 age of the call, ms   3 batch   4 on, e|d|x: the callback becomes ready when all tasks
--       have e ended, or are d done; x forget the batch   5 keep, ms: for how long the batch is kept after its end
--       6 digest: of all that the batch is sealed with   7.. sections
-- SECTIONS  callback=1 its id   payload=1 of the callback   group=1 of the callback   priority=1 of the callback
-- Reply letter: O done; U there is no such batch to forget
do
  local function forget(name, one)
    if not one then
      calls.mark()
      return 'U'
    end
    local waits = one.state == 's' and batches.fail_callback(one.callback, 'batch ' .. name .. ' was forgotten')
    if waits then results.tell_ended({one.callback}) end
    batches.drop(name)
    return 'O'
  end

  -- cannot_call: why this task cannot be the callback of the batch, as an error; nil if it can
  local function cannot_call(name, callback)
    local where = find.one(callback)
    if call('ZSCORE', batches.key_of(name), callback) then
      return {err = 'BATCH task ' .. shown(callback) .. ' is a task of batch ' .. name .. ', and cannot be its callback, too: give the '
        .. 'callback an id of its own'}
    elseif where and where ~= 'd' and where ~= 'f' then
      return {err = 'BATCH task ' .. shown(callback) .. ' is in the queue already, and would run before the batch has ended: give the '
        .. 'callback an id of its own'}
    end
  end

  verb('seal_batch', {flags = {'allow-oom'}, if_room = true}, function()
    local name, on, digest = args[3], args[4], args[6]
    local given, refused = sections(7, ' callback=1 payload=1 group=1 priority=1')
    if refused then return refused end
    local priorities, unfit = priority.of({given.callback}, given)
    unfit = unfit or batches.unnamed(name)
    if unfit then return unfit end
    local one = batches.get(name)
    if on == 'x' then return forget(name, one) end
    if one and one.state ~= 'o' then
      if one.rev ~= digest then
        return {err = 'BATCH batch ' .. name .. ' is sealed already, with another callback or other options: give this batch another name'}
      end
      calls.mark()
      return 'O'
    end
    if given.callback then
      unfit = cannot_call(name, given.callback)
      if unfit then return unfit end
      given.payloads = given.payload and {given.payload}
      tasks.add({given.callback}, given, true, batches.WAITS, priorities)
    end
    batches.seal(name, on, args[5], digest, given.callback or '')
    return 'O'
  end)
end
