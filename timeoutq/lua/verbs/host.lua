-- host: what is known of a host of a polite queue; set its rules, block it, ban it.
-- ARGS  1 call id   2 age of the call, ms   3 host
--       4.. (rule, value) *: delay ms, per_host n, budget n, or '' for the queue's own; block ms from now, or '@' and
--       the time in ms; by who says so; unblock ''; ban reason; or alone: recall '', to go on with one that is under
--       way
-- Reply {host, waiting number, {in flight *}, turn? ms or inf, delay ms, per_host number, budget number or -1, visits
--       number, failures number, next allowed ms, blocked until ms, flag b|x|-, reason, how many in flight number,
--       recalling 0 or 1, next waiting task?, its priority?}: of those in flight, the first twenty
-- Reply nil: the queue is not polite
do
  local SETS = {delay = 'own_delay', per_host = 'own_per_host', budget = 'budget'}
  local LOGGED = {block = 'block', unblock = 'unblock', ban = 'ban'}

  verb('host', {flags = {'allow-oom'}, as = function() return LOGGED[args[4]] or 'host' end}, function()
    if not polite then return false end
    local name = args[3]
    local one, banned = hosts.get(name), false
    for i = 4, #args, 2 do
      local rule, value = args[i], args[i + 1]
      if SETS[rule] then
        one[SETS[rule]] = tonumber(value)
      elseif rule == 'block' and one.flag ~= 'x' then -- a ban is ended by unblock only
        one.until_ms = tonumber(string.match(value, '^@(%d+)$')) or now + tonumber(value)
        one.flag, one.reason = 'b', ''
      elseif rule == 'by' and one.flag == 'b' then
        one.reason = value
      elseif rule == 'ban' then
        banned = banned or one.flag ~= 'x' or one.reason ~= value
        one.flag, one.reason = 'x', value
      elseif rule == 'unblock' then
        one.flag, one.reason, one.until_ms = '-', '', 0
      end
    end
    if #args > 3 then
      calls.mark()
      if args[4] ~= 'recall' then
        hosts.write_policy(one)
        if banned then failures.note(name, 'this host is banned: ' .. one.reason .. '; its tasks that are or become ready go to failed') end
        -- what was handed over by other rules and not claimed yet waits again
        hosts.recall(one)
      end
      ready.turn()
    end
    return hosts.row(name)
  end)
end
