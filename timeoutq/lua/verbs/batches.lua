-- batches: what is known of batches: some by their names, a page of all, or the tasks of one.
-- ARGS  1 call id   2 age of the call, ms   3 what, names|page|tasks   4 from: page: the cursor; tasks: the batch;
--       names: not looked at   5 which: names: a name; page: about how many; tasks: the first place   6.. more *:
--       names: further names; tasks: the last place
-- Reply {now ms, next cursor, (name, record, tasks number, not ended number, ended but not as done number) *}: names
--       and page
-- Reply {now ms, tasks number, (place number, end o|d|l, id) *}: tasks, of which o has not ended, d is done, l ended in
--       another way
do
  local function members(name, first, last)
    local reply, set = {now, (batches.counts(name))}, batches.key_of(name)
    for letter, from in pairs({o = 0, d = batches.DONE, l = batches.LOST}) do
      local rows = call('ZRANGEBYSCORE', set, whole(from + first), whole(from + last), 'WITHSCORES')
      for i = 1, #rows, 2 do
        reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = tonumber(rows[i + 1]) - from, letter, rows[i]
      end
    end
    return reply
  end

  verb('batches', {flags = {'no-writes'}}, function()
    if args[3] == 'tasks' then return members(args[4], tonumber(args[5]), tonumber(args[6])) end
    local cursor, names = '0', {unpack(args, 5)}
    if args[3] == 'page' then
      local page = call('HSCAN', key.batches, args[4], 'COUNT', args[5])
      cursor, names = page[1], every_other(page[2])
    end
    local reply = {now, cursor}
    for _, name in ipairs(names) do
      local text = call('HGET', key.batches, name)
      if text then
        local all, open, lost = batches.counts(name)
        reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = name, text, all
        reply[#reply + 1], reply[#reply + 2] = open, lost
      end
    end
    return reply
  end)
end
