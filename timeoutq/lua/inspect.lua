-- inspect: all that is known of one task.
-- KEYS  todos in_progress done failed scheduled leases owners payload attempts crashes errors done_at lock meta stats bell alarm
-- PARTS open about
-- ARGV  1 call id   2 age of the call, ms   3 id
-- Reply {now ms, letter, due? ms, deadline? ms, token?, failures?, crashes?, error?, payload?, host?, traceback?,
--       releases?, priority?, runs once more? 0 or 1, has a result? 0 or 1, cancelled by?, progress?}: t w p d f s the state that holds it; u none does. It runs
--       once more after this run; its result is kept; cancelled by: who cancels it while it is in progress
return about(ARGV[3])
