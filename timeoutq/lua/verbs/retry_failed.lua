-- retry_failed: failed tasks become ready again, with a clean record.
-- ARGS  1 call id   2 age of the call, ms   3 at most, number: when no ids are named   4.. id *
-- Reply letters, one per id: O it is ready again; t w p d s the state it is in; u it is in none
-- Reply how many moved, number: when no ids are named
verb('retry_failed', {flags = {'allow-oom'}}, function()
  local ids = args[4] and {unpack(args, 4)} or call('SRANDMEMBER', key.failed, args[3])
  local moved, is_moved, codes = tasks.retry(ids), {}, {}
  if #moved == 0 then calls.mark() end
  if not args[4] then return #moved end
  for _, id in ipairs(moved) do is_moved[id] = true end
  for i = 1, #ids do
    codes[i] = is_moved[ids[i]] and 'O' or find.one(ids[i]) or 'u'
    is_moved[ids[i]] = false -- a task that is named twice moves once
  end
  return table.concat(codes)
end)
