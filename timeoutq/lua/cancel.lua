-- cancel: tasks that have not ended are not to run, or to run no longer. A task that is ready or scheduled goes to failed. One in
-- progress is marked: its worker hears of it, stops the handler, and then the task goes to failed.
-- KEYS  todos in_progress done failed scheduled done_at payload attempts crashes errors lock meta stats bell alarm calls
-- PARTS open find calls cancel mark
-- SOUND stats alarm todos failed scheduled calls; errors traces trace_uses trace_texts trace_at cancels kinds kind_of
-- BY    3 who cancels
-- ARGV  1 call id, nonce   2 age of the call, ms   3 by: who cancels   4.. id *
-- Reply letters, one per id: c cancelled: it was ready or scheduled, and is in failed now; m it is in progress, and marked; d f the
--       state in which it has ended before; u it is in no state
local call_id, by, ids = ARGV[1], ARGV[3], {unpack(ARGV, 4)}
local where, codes, seen = find_all(ids), {}, {}
local gone, was, whose, running = {}, {}, {}, {}
sound()
local again = ARGV[2] ~= '0' and was_called(call_id)
for i = 1, #ids do
  local id, state = ids[i], where[i]
  codes[i] = state == 'p' and 'm' or state or 'u'
  if state and string.find('tws', state, 1, true) then
    codes[i] = 'c'
    if not seen[id] then gone[#gone + 1], was[#was + 1], whose[#whose + 1] = id, state, by end
  elseif state == 'p' and not seen[id] then
    running[#running + 1] = id
  elseif state == 'f' and again and string.match(redis.call('HGET', errors, id) or '', '^%d+ (.*)$') == 'cancelled by ' .. by then
    codes[i] = 'c' -- by this very call, whose reply was lost
  end
  seen[id] = true
end
if #gone + #running == 0 then
  mark()
  return table.concat(codes)
end
even_when_full()
note_call(call_id)
if #gone > 0 then
  cancelled(gone, whose)
  for i = 1, #gone do
    if was[i] == 's' then
      redis.call('SADD', failed, gone[i])
      redis.call('ZREM', scheduled, gone[i])
    else
      redis.call('SMOVE', was[i] == 't' and todos or waiting, failed, gone[i])
    end
  end
  withdraw(gone, was)
end
if #running > 0 then
  local fresh = 0
  for i = 1, #running do fresh = fresh + redis.call('HSETNX', key('cancels'), running[i], by) end
  if not has('cancel') then use('cancel', true) end
  if unmark then unmark(running) end -- what was put for a run after this one is cancelled, too
  if fresh > 0 then count_up(stats, 'cancelling', fresh) end
  rouse(now)
end
return table.concat(codes)
