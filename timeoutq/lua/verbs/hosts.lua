-- hosts: a page of the hosts of a polite queue, those whose turn is next first.
-- ARGS  1 call id   2 age of the call, ms   3 from which place on, number   4 how many, number
-- Reply {row any *}: rows as `host` replies them
-- Reply nil: the queue is not polite
verb('hosts', {flags = {'no-writes'}}, function()
  if not polite then return false end
  local names, rows = call('ZRANGE', key.hosts, args[3], args[3] + args[4] - 1), {}
  hosts.load(names)
  for i = 1, #names do rows[i] = hosts.row(names[i]) end
  return rows
end)
