-- schedules: what is known of schedules: those whose tick is due, some by their names, or a page of all.
-- ARGS  1 call id   2 age of the call, ms   3 what, due|names|page   4 from: due: how many, at most; page: the cursor;
--       names: not looked at   5.. word *: names: the names; page: about how many; due: how many to pass over, the
--       oldest tick first
-- Reply {now ms, next cursor, (schedule, record?, definition?) *, left out number}: a page ends where it has 4 MiB, and
--       the last place of the reply is how many of the names were left out then
verb('schedules', {flags = {'no-writes'}}, function()
  if not has('schedules') then return {now, '0', 0} end
  local kind, cursor, names = args[3], '0', {unpack(args, 5)}
  if kind == 'due' then
    names = call('ZRANGEBYSCORE', key.ticks, '-inf', now, 'LIMIT', args[5] or 0, args[4])
  elseif kind == 'page' then
    local page = call('HSCAN', key.ticked, args[4], 'COUNT', args[5])
    cursor, names = page[1], every_other(page[2])
  end
  local reply, bytes, told = {now, cursor}, 0, 0
  for _, name in ipairs(names) do
    if bytes > 4194304 and kind == 'due' then break end
    local text = call('HGET', key.schedules, name)
    bytes, told = bytes + #(text or ''), told + 1
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = name, call('HGET', key.ticked, name), text
  end
  reply[#reply + 1] = #names - told
  return reply
end)
