-- schedule: add tasks that become ready at a time; move the time of those already scheduled, earlier or later.
-- KEYS  todos in_progress done failed scheduled done_at payload attempts crashes errors meta stats bell alarm calls
-- PARTS open wake calls log hostname polite add answered
-- SOUND stats calls alarm
-- ARGV  1 call id   2 age of the call, ms (0 when first sent)   3 again: 0 or 1
--       4 due time, ms since 1970, or +delay, ms from now
--       5 the host of all, or ''   6.. count, id * count, count of payloads, (position, payload) *
-- Reply letters, one an id: A added; s was scheduled and has the new time; t w p d f the state it already is in
sound()
local call_id = ARGV[1]
local ids, payloads = read_tasks(6)
local before = answered_before(call_id, ids)
if before then return before end
local due = tonumber(ARGV[4])
if string.sub(ARGV[4], 1, 1) == '+' then
  due = now + tonumber(string.sub(ARGV[4], 2))
end
local codes = add(ids, payloads, ARGV[3] == '1', due, ARGV[5])
note_call(call_id)
return codes
