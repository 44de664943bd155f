-- forget: remove tasks from every state; a worker that runs one finds its lease lost.
-- ARGS  1 call id   2 age of the call, ms   3.. id *
-- Reply letters, one per id: t w p d f s the state it was in; u it was in none
verb('forget', {flags = {'allow-oom'}}, function()
  local ids, count, running, seen = {unpack(args, 3)}, 0, {}, {}
  local codes = find.letters(ids)
  for i = 1, #ids do
    if codes[i] ~= 'u' and not seen[ids[i]] then
      seen[ids[i]], count = true, count + 1
      if codes[i] == 'p' then running[#running + 1] = ids[i] end
    end
  end
  call('SREM', key.todos, unpack(ids))
  call('SREM', key.in_progress, unpack(ids))
  call('SREM', key.failed, unpack(ids))
  call('ZREM', key.scheduled, unpack(ids))
  done.undo(ids)
  done.undate(ids)
  tasks.forget(ids)
  leases.drop(running)
  ready.withdraw(ids, codes)
  groups.forget(ids)
  rerun.unmark(ids)
  if count > 0 then count_up(key.stats, 'forgotten', count) else calls.mark() end
  return table.concat(codes)
end)
