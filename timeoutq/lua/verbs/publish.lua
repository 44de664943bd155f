-- publish: tell the queue which functions a worker has.
-- ARGS  1 call id   2 age of the call, ms   3 worker   4.. (function, digest, schema) *: the digest of its version, and
--       what it takes as JSON
-- Reply how many functions were told, number
-- functions  of each function a line for each version, four at most, the one that was told last first: digest, when it
--            was told, ms, the worker, and the JSON, with blanks between them. Workers tell again each minute; a day
--            later, a version is forgotten
verb('publish', {flags = {'allow-oom'}}, function()
  for i = 4, #args, 3 do
    local lines = {string.format('%s %.0f %s %s', args[i + 1], now, args[3], args[i + 2])}
    for line in string.gmatch(call('HGET', key.functions, args[i]) or '', '[^\n]+') do
      local digest, at = string.match(line, '^(%x+) (%d+) ')
      if digest and digest ~= args[i + 1] and #lines < 4 and number(at, 0) > now - 86400000 then lines[#lines + 1] = line end
    end
    call('HSET', key.functions, args[i], table.concat(lines, '\n'))
  end
  return (#args - 3) / 3
end)
