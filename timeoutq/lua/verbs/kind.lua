-- kind: failed tasks of one kind become ready again, with a clean record, or are forgotten; those that were given up
-- first go first.
-- ARGS  1 call id   2 age of the call, ms   3 act, retry|forget   4 text: of the kind; empty for the tasks of all kinds
--       beyond the thousandth   5 before, ms: only tasks that were given up by then, 0 for now   6 most, number: how
--       many tasks
-- Reply {moved number, left number, before ms}: how many have left failed, how many of those are left, and until when
--       they were given up
verb('kind', {flags = {'allow-oom'}, as = function() return args[3] .. '_kind' end}, function()
  local text, before = args[4], number(args[5], 0)
  if before < 1 then before = now end
  local at = text == '' and 0 or number(call('HGET', key.kinds, '=' .. text), -1)
  local first, last = whole(at * kinds.SPAN), whole(at * kinds.SPAN + math.min(before, kinds.SPAN - 1))
  local ids = at < 0 and {} or call('ZRANGEBYSCORE', key.kind_of, first, last, 'LIMIT', 0, args[6])
  if #ids == 0 then
    calls.mark()
    return {0, 0, before}
  end
  local moved
  kinds.leave(ids)
  if args[3] == 'retry' then
    moved = tasks.retry(ids)
  else
    local gone = {}
    for i = 1, #ids do gone[i] = call('SREM', key.failed, ids[i]) == 1 end
    moved = chosen(ids, gone)
    if #moved > 0 then
      tasks.forget(moved)
      groups.forget(moved)
      count_up(key.stats, 'forgotten', #moved)
    end
  end
  return {#moved, call('ZCOUNT', key.kind_of, first, last), before}
end)
