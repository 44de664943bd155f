-- note: a handler says how far it is. This is kept until its lease ends.
-- ARGS  1 call id   2 age of the call, ms   3.. count, runs of (token, length, id * length); done decimal, of how much
--       decimal or -, text: of one lease
-- Reply letter: O noted; c noted, but somebody has cancelled the task, so its handler is to stop; L the lease is not
--       this token's
verb('note', {}, function()
  local ids, tokens, at = leases.read(3)
  if not leases.mine(ids, tokens)[1] then return 'L' end
  call('HSET', key.progress, ids[1], now .. ' ' .. args[at] .. ' ' .. args[at + 1] .. ' ' .. args[at + 2])
  settings.use('progress', true)
  return cancel.marks_of(ids)[1] and 'c' or 'O'
end)
