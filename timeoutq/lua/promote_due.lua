-- promote_due: scheduled tasks whose time has come become ready, and hosts whose turn it is hand over theirs.
-- KEYS  todos scheduled lock meta stats bell alarm
-- PARTS open rounds
-- SOUND stats alarm todos
-- ARGV  1 call id   2 age of the call, ms   3 at most, number
-- Reply {now ms, promoted number, more 0 or 1}: there may be more
local n = tonumber(ARGV[3])
local ids = redis.call('ZRANGEBYSCORE', scheduled, '-inf', now, 'LIMIT', 0, n)
if #ids > 0 then
  sound()
  even_when_full()
  ready(ids)
  redis.call('ZREM', scheduled, unpack(ids))
  count_up(stats, 'promoted', #ids)
end
local handed, more = due_turns(n)
return {now, #ids + handed, (#ids == n or more) and 1 or 0}
