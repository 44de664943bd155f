-- retry_failed: failed tasks become ready again, with a clean record.
-- ARGS  1 call id   2 age of the call, ms   3 at most, number: when no ids are named   4.. id *
-- Reply letters, one per id: O it is ready again; t w p d s the state it is in; u it is in none
-- Reply how many moved, number: when no ids are named
verb('retry_failed', {flags = {'allow-oom'}}, function()
  local ids, moved, is_moved = {unpack(args, 4)}, {}, {}
  if #ids == 0 then
    ids = call('SRANDMEMBER', key.failed, args[3])
  end
  if args[4] then find.all(ids) end -- the reply tells where the others are: none of these keys may be of a foreign type by then
  local names, moved_names = #ids > 0 and ready.hosts_of(ids) or {}, {}
  for i = 1, #ids do
    if call('SMOVE', key.failed, ready.entry(names[i]), ids[i]) == 1 then
      moved[#moved + 1], moved_names[#moved + 1], is_moved[i] = ids[i], names[i], true
    end
  end
  if #moved > 0 then
    kinds.leave(moved)
    failures.clear(moved)
    count_up(key.stats, 'retried', #moved)
    ready.arrive(moved, moved_names)
    ready.turn()
  else
    calls.mark()
  end
  if not args[4] then return #moved end
  local codes = {}
  for i = 1, #ids do codes[i] = is_moved[i] and 'O' or find.one(ids[i]) or 'u' end
  return table.concat(codes)
end)
