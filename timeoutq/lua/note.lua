-- note: a handler says how far it is. This is kept until its lease ends.
-- KEYS  in_progress owners lock meta
-- PARTS open items progress switch
-- SOUND progress
-- ARGV  1 call id   2 age of the call, ms   3.. count, runs of (token, length, id * length); done decimal, of how much decimal or -, text: of one lease
-- Reply letter: O noted; c noted, but somebody has cancelled the task, so its handler is to stop; L the lease is not this token's
local ids, tokens, at = read_leases(3)
local held = mine(ids, tokens)[1]
local by = has('cancel') and redis.call('HGET', key('cancels'), ids[1])
sound()
if not held then return 'L' end
redis.call('HSET', key('progress'), ids[1], now .. ' ' .. ARGV[at] .. ' ' .. ARGV[at + 1] .. ' ' .. ARGV[at + 2])
if not has('progress') then use('progress', true) end
return by and 'c' or 'O'
