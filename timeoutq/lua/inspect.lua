-- inspect: all that is known of one task.
-- KEYS  todos in_progress done failed scheduled leases owners payload attempts crashes errors done_at lock meta stats bell alarm
-- PARTS open about
-- ARGV  1 call id   2 age of the call, ms   3 id
-- Reply {now ms, state letter or u, due ms, deadline ms, token, failures, crashes, error, payload, host, traceback,
--       releases, priority, 1 if it runs once more after this run, 1 if its result is kept,
--       who cancels it while it is in progress, its progress}; nil where unknown
return about(ARGV[3])
