-- await: how tasks have ended; and for those that have not, note that a client waits. To look and to note is one step,
-- so no end is missed. It ends early when the results are many bytes: ask for the rest again.
-- ARGS  1 call id   2 age of the call, ms   3 client: its name; empty to look only   4.. id *
-- Reply {letters, {result? *}, {error? *}}, one per id: t w p s it has not ended, and the client is noted; d f it is
--       done or failed; u it is in no state. Results are those of tasks that have ended, errors the last ones of failed
--       tasks that have no result, or an empty one
verb('await', {flags = {'allow-oom'}}, function()
  local client, ids = args[3], {unpack(args, 4)}
  if client ~= '' and (#client > 64 or not string.find(client, '^[%w.:_-]+$')) then
    return {err = 'CLIENT the name of a client is 1 to 64 of A-Z a-z 0-9 . : _ -'}
  end
  local letters, bodies, messages, open, bytes, last = find.letters(ids), {}, {}, {}, 0, 0
  while last < #ids and bytes < 4194304 do
    local names, at = {}, {}
    for i = last + 1, math.min(last + 8, #ids) do
      bodies[i], messages[i], last = false, false, i
      if string.find('twps', letters[i], 1, true) then
        open[#open + 1] = ids[i]
      else
        names[#names + 1], at[#at + 1] = results.key_of(ids[i]), i
      end
    end
    local found = #names > 0 and call('MGET', unpack(names)) or {}
    for k, i in ipairs(at) do
      local body = found[k]
      bodies[i], bytes = body, bytes + (body and #body or 0)
      if letters[i] == 'f' and (not body or body == '') then messages[i] = call('HGET', key.errors, ids[i]) end
    end
  end
  if client ~= '' and #open > 0 then
    local waits, rows = call('HMGET', key.awaited, unpack(open)), {}
    for i = 1, #open do
      local names = waits[i] or ''
      if not string.find(' ' .. names .. ' ', ' ' .. client .. ' ', 1, true) then
        -- of so many clients, the one that came first is told no longer, and asks again by itself
        if #names > results.MOST_NAMES then names = string.match(names, ' (.*)') or '' end
        rows[#rows + 1], rows[#rows + 2] = open[i], names == '' and client or names .. ' ' .. client
      end
    end
    some('HSET', key.awaited, rows)
    if #rows > 0 then settings.use('results', true) end
  end
  return {table.concat(letters, '', 1, last), bodies, messages}
end)
