-- publish: tell the queue which functions a worker has.
-- KEYS  lock meta
-- PARTS open
-- SOUND functions
-- ARGV  1 call id   2 age of the call, ms   3 worker   4.. (function, digest, schema) *: the digest of its version, and what it takes as JSON
-- Reply how many functions were told, number
-- functions  of each function a line for each version, four at most, the one that was told last first: digest, when it was told, ms,
--            the worker, and the JSON, with blanks between them. Workers tell again each minute; a day later, a version is forgotten
sound()
even_when_full()
for i = 4, #ARGV, 3 do
  local lines = {string.format('%s %.0f %s %s', ARGV[i + 1], now, ARGV[3], ARGV[i + 2])}
  for line in string.gmatch(redis.call('HGET', key('functions'), ARGV[i]) or '', '[^\n]+') do
    local digest, at = string.match(line, '^(%x+) (%d+) ')
    if digest and digest ~= ARGV[i + 1] and #lines < 4 and number(at, 0) > now - 86400000 then lines[#lines + 1] = line end
  end
  redis.call('HSET', key('functions'), ARGV[i], table.concat(lines, '\n'))
end
return (#ARGV - 3) / 3
