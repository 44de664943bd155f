-- promote_due: scheduled tasks whose time has come become ready, and hosts whose turn it is hand over theirs.
-- ARGS  1 call id   2 age of the call, ms   3 at most, number
-- Reply {now ms, promoted number, more 0 or 1}: there may be more
verb('promote_due', {flags = {'allow-oom'}}, function()
  local n, handed, more = tonumber(args[3]), 0, false
  local ids = call('ZRANGEBYSCORE', key.scheduled, '-inf', now, 'LIMIT', 0, n)
  if #ids > 0 then
    ready.enter(ids)
    call('ZREM', key.scheduled, unpack(ids))
    count_up(key.stats, 'promoted', #ids)
  end
  local names = polite and call('ZRANGEBYSCORE', key.hosts, '-inf', now, 'LIMIT', 0, n) or {}
  if #names > 0 then
    hosts.load(names)
    handed, more = ready.turn()
  end
  return {now, #ids + handed, (#ids == n or #names == n or more) and 1 or 0}
end)
