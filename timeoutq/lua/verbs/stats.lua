-- stats: the sizes of all states, the counters and the settings, at one moment.
-- ARGS  1 call id   2 age of the call, ms
-- Reply {now ms, todos number, scheduled number, in_progress number, done number, failed number, next due? ms, next
--       deadline? ms, workers number, {(counter, count) *}, {(setting, value) *}, waiting number, hosts number, next
--       turn of a host? ms, {{(field, runs) *} *}}: the last is how long handlers ran, in two spans
verb('stats', {flags = {'no-writes'}}, function()
  local due = call('ZRANGE', key.scheduled, 0, 0, 'WITHSCORES')
  local lease = call('ZRANGE', key.leases, 0, 0, 'WITHSCORES')
  local turn = hosts.next_turn()
  return {
    now, call('SCARD', key.todos), call('ZCARD', key.scheduled), call('SCARD', key.in_progress),
    done.count(), call('SCARD', key.failed), due[2] or false, lease[2] or false,
    leases.workers(), call('HGETALL', key.stats), call('HGETALL', key.meta),
    call('SCARD', key.waiting), has('politeness') and call('ZCARD', key.hosts) or 0, turn and whole(turn) or false,
    {call('HGETALL', key.durations0), call('HGETALL', key.durations1), call('HGETALL', key.durations)},
  }
end)
