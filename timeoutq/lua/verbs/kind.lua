-- kind: failed tasks of one kind become ready again, with a clean record, or are forgotten; those that were given up first go first.
-- ARGS  1 call id   2 age of the call, ms   3 act, retry|forget   4 text: of the kind; empty for the tasks of all kinds beyond the thousandth
--       5 before, ms: only tasks that were given up by then, 0 for now   6 most, number: how many tasks
-- Reply {moved number, left number, before ms}: how many have left failed, how many of those are left, and until when they were given up
verb('kind', {flags = {'allow-oom'}, as = function() return args[3] .. '_kind' end}, function()
  local text, before = args[4], number(args[5], 0)
  if before < 1 then before = now end
  local at = text == '' and 0 or number(call('HGET', key.kinds, '=' .. text))
  if not at then
    calls.mark()
    return {0, 0, before}
  end
  local first, last = string.format('%.0f', at * kinds.SPAN), string.format('%.0f', at * kinds.SPAN + math.min(before, kinds.SPAN - 1))
  local ids = call('ZRANGEBYSCORE', key.kind_of, first, last, 'LIMIT', 0, args[6])
  if #ids == 0 then
    calls.mark()
    return {0, 0, before}
  end
  local moved, moved_names = {}, {}
  if args[3] == 'retry' then
    local names = ready.hosts_of(ids)
    for i = 1, #ids do
      if call('SMOVE', key.failed, ready.entry(names[i]), ids[i]) == 1 then moved[#moved + 1], moved_names[#moved + 1] = ids[i], names[i] end
    end
  else
    for i = 1, #ids do
      if call('SREM', key.failed, ids[i]) == 1 then moved[#moved + 1] = ids[i] end
    end
  end
  kinds.leave(ids)
  if #moved > 0 then
    failures.clear(moved)
    if args[3] == 'retry' then
      count_up(key.stats, 'retried', #moved)
      ready.arrive(moved, moved_names)
      ready.turn()
    else
      call('HDEL', key.payload, unpack(moved))
      groups.forget(moved)
      priority.forget(moved)
      results.tell_ended(moved)
      count_up(key.stats, 'forgotten', #moved)
    end
  end
  return {#moved, call('ZCOUNT', key.kind_of, first, last), before}
end)
