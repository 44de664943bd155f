-- inspect: all that is known of one task.
-- ARGS  1 call id   2 age of the call, ms   3 id
-- Reply {now ms, letter, due? ms, deadline? ms, token?, failures?, crashes?, error?, payload?, host?, traceback?,
--       releases?, priority?, runs once more? 0 or 1, has a result? 0 or 1, cancelled by?, progress?, record?}: t w p d f s the
--       state that holds it; u none does. It runs once more after this run; its result is kept; cancelled by: who
--       cancels it while it is in progress
verb('inspect', {flags = {'no-writes'}}, function()
  return find.about(args[3])
end)
