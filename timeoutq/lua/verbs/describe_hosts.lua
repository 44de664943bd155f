-- describe_hosts: what an export says of hosts: the rules of their own, and what was counted of them.
-- ARGS  1 call id   2 age of the call, ms   3.. host *
-- Reply {now ms, {delay? ms, per_host? number, budget? number, visits number, failures number, next allowed ms, blocked
--       until ms, flag b|x|-, reason} *}: delay, per_host and budget are nil where the host has none of its own
-- Reply nil: the queue is not polite
verb('describe_hosts', {flags = {'no-writes'}}, function()
  if not polite then return false end
  local names, rows = {unpack(args, 3)}, {now}
  local known, failed = hosts.load(names), call('HMGET', key.host_failures, unpack(names))
  for i = 1, #names do
    local one = known[names[i]]
    rows[i + 1] = {
      one.own_delay or false, one.own_per_host or false, one.budget or false, one.visits, number(failed[i], 0),
      whole(one.next_ms or 0), whole(one.until_ms or 0), one.flag or '-', one.reason or '',
    }
  end
  return rows
end)
