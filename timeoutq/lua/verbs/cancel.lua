-- cancel: tasks that have not ended are not to run, or to run no longer. A task that is ready or scheduled goes to
-- failed. One in progress is marked: its worker hears of it, stops the handler, and then the task goes to failed.
-- ARGS  1 call id, nonce   2 age of the call, ms   3 by: who cancels   4.. id *
-- Reply letters, one per id: c cancelled: it was ready or scheduled, and is in failed now; m it is in progress, and
--       marked; d f the state in which it has ended before; u it is in no state
verb('cancel', {flags = {'allow-oom'}, by = 3}, function()
  local call_id, by, ids = args[1], args[3], {unpack(args, 4)}
  local codes, seen, gone, was, whose, running = find.letters(ids), {}, {}, {}, {}, {}
  local again = args[2] ~= '0' and calls.was(call_id)
  for i = 1, #ids do
    local id, state = ids[i], codes[i]
    if string.find('tws', state, 1, true) then
      codes[i] = 'c'
      if not seen[id] then gone[#gone + 1], was[#was + 1], whose[#whose + 1] = id, state, by end
    elseif state == 'p' then
      codes[i] = 'm'
      if not seen[id] then running[#running + 1] = id end
    elseif state == 'f' and again and string.match(call('HGET', key.errors, id) or '', '^%d+ (.*)$') == 'cancelled by ' .. by then
      codes[i] = 'c' -- by this very call, whose reply was lost
    end
    seen[id] = true
  end
  if #gone + #running == 0 then calls.mark() else calls.note(call_id) end
  if #gone > 0 then
    cancel.fail(gone, whose)
    for i = 1, #gone do
      if was[i] == 's' then
        call('SADD', key.failed, gone[i])
        call('ZREM', key.scheduled, gone[i])
      else
        call('SMOVE', was[i] == 't' and key.todos or waiting, key.failed, gone[i])
      end
    end
    ready.withdraw(gone, was)
  end
  if #running > 0 then
    local fresh = 0
    for i = 1, #running do fresh = fresh + call('HSETNX', key.cancels, running[i], by) end
    settings.use('cancel', true)
    rerun.unmark(running) -- what was put for a run after this one is cancelled, too
    if fresh > 0 then count_up(key.stats, 'cancelling', fresh) end
    wake.rouse(now)
  end
  return table.concat(codes)
end)
