-- forget: remove tasks from every state; a worker that runs one finds its lease lost.
-- ARGS  1 call id   2 age of the call, ms   3.. id *
-- Reply letters, one per id: t w p d f s the state it was in; u it was in none
verb('forget', {flags = {'allow-oom'}}, function()
  local ids, codes = {unpack(args, 3)}, {}
  local where, count, running, seen = find.all(ids), 0, {}, {}
  for i = 1, #ids do
    codes[i] = where[i] or 'u'
    if where[i] and not seen[ids[i]] then
      seen[ids[i]], count = true, count + 1
      if where[i] == 'p' then running[#running + 1] = ids[i] end
    end
  end
  call('SREM', key.todos, unpack(ids))
  call('SREM', key.in_progress, unpack(ids))
  call('SREM', key.failed, unpack(ids))
  call('ZREM', key.scheduled, unpack(ids))
  done.undo(ids)
  done.undate(ids)
  call('HDEL', key.payload, unpack(ids))
  kinds.leave(ids)
  failures.clear(ids)
  leases.drop(running)
  ready.withdraw(ids, where)
  groups.forget(ids)
  priority.forget(ids)
  rerun.unmark(ids)
  results.tell_ended(ids)
  if count > 0 then
    count_up(key.stats, 'forgotten', count)
  else
    calls.mark()
  end
  return table.concat(codes)
end)
