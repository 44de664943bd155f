-- put: add tasks that no state knows; say for each what was found.
-- KEYS  todos in_progress done failed scheduled done_at payload attempts crashes errors meta stats bell alarm calls
-- PARTS open wake calls log hostname polite add answered
-- SOUND stats calls
-- ARGV  1 call id   2 age of the call, ms (0 when first sent)   3 again: 0 or 1   4 the host of all, or ''
--       5.. count, id * count, count of payloads, (position, payload) *
-- Reply letters, one an id: A added; t w p d f s the state it already is in
sound()
local call_id = ARGV[1]
local ids, payloads = read_tasks(5)
local before = answered_before(call_id, ids)
if before then return before end
local codes = add(ids, payloads, ARGV[3] == '1', false, ARGV[4])
note_call(call_id)
return codes
