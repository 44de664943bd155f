-- batches: what is known of batches: some by their names, a page of all, or the tasks of one.
-- ARGS  1 call id   2 age of the call, ms   3 what, names|page|tasks   4 from: page: the cursor; tasks: the batch; names: not looked at
--       5 which: names: a name; page: about how many; tasks: the first place   6.. more *: names: further names; tasks: the last place
-- Reply {now ms, next cursor, (name, record, tasks number, not ended number, ended but not as done number) *}: names and page
-- Reply {now ms, tasks number, (place number, end o|d|l, id) *}: tasks, of which o has not ended, d is done, l ended in another way
verb('batches', {flags = {'no-writes'}}, function()
  local kind, cursor, names = args[3], '0', {}
  if kind == 'tasks' then
    local reply, set = {now, (batches.counts(args[4]))}, batches.key_of(args[4])
    local first, last = tonumber(args[5]), tonumber(args[6])
    for letter, from in pairs({o = 0, d = batches.DONE, l = batches.LOST}) do
      local rows = call('ZRANGEBYSCORE', set, string.format('%.0f', from + first), string.format('%.0f', from + last), 'WITHSCORES')
      for i = 1, #rows, 2 do
        reply[#reply + 1] = tonumber(rows[i + 1]) - from
        reply[#reply + 1] = letter
        reply[#reply + 1] = rows[i]
      end
    end
    return reply
  elseif kind == 'names' then
    names = {unpack(args, 5)}
  else
    local page = call('HSCAN', key.batches, args[4], 'COUNT', args[5])
    cursor = page[1]
    for i = 1, #page[2], 2 do names[#names + 1] = page[2][i] end
  end
  local reply = {now, cursor}
  for i = 1, #names do
    local text = call('HGET', key.batches, names[i])
    if text then
      local all, open, lost = batches.counts(names[i])
      reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = names[i], text, all
      reply[#reply + 1], reply[#reply + 2] = open, lost
    end
  end
  return reply
end)
