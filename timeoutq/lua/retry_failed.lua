-- retry_failed: failed tasks become ready again, with a clean record.
-- KEYS  todos in_progress done failed scheduled done_at payload attempts crashes errors lock meta stats bell alarm
-- PARTS open find log mark
-- SOUND stats alarm; attempts crashes errors releases traces trace_uses trace_texts trace_at kinds kind_of
-- ARGV  1 call id   2 age of the call, ms   3 at most, number: when no ids are named   4.. id *
-- Reply letters, one per id: O it is ready again; t w p d s the state it is in; u it is in none
-- Reply how many moved, number: when no ids are named
local ids, moved, is_moved = {unpack(ARGV, 4)}, {}, {}
if #ids == 0 then
  ids = redis.call('SRANDMEMBER', failed, ARGV[3])
end
sound()
if ARGV[4] then find_all(ids) end -- the reply tells where the others are: none of these keys may be of a foreign type by then
local names, moved_names = #ids > 0 and hosts_of(ids) or {}, {}
for i = 1, #ids do
  if redis.call('SMOVE', failed, entry(names[i]), ids[i]) == 1 then
    moved[#moved + 1], moved_names[#moved + 1], is_moved[i] = ids[i], names[i], true
  end
end
if #moved > 0 then
  leave_kinds(moved)
  clear(moved)
  count_up(stats, 'retried', #moved)
  arrive(moved, moved_names)
  turn()
else
  mark()
end
if not ARGV[4] then return #moved end
local codes = {}
for i = 1, #ids do codes[i] = is_moved[i] and 'O' or find_one(ids[i]) or 'u' end
return table.concat(codes)
