-- trim: the event log keeps as many of its last bytes as the setting `events` says
-- trim_log: drop the oldest entries, whole nodes of the stream, at most some 10,000 entries a call; gives whether more are to go. Each entry
-- says how many bytes were logged before it: so the first entry that stays is found by bisection, between the times of first and last
local function trim_log()
  local log = key('events')
  local most = number(string.match(redis.call('HGET', meta, 'events') or '', '^%d+'))
  local logged = number(redis.call('HGET', stats, 'logged'), 0)
  local function offset_of(entry)
    for i = 1, #entry[2], 2 do
      if entry[2][i] == 'offset' then return number(entry[2][i + 1], 0) end
    end
    return 0 -- a foreign hand's entry
  end
  local first = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
  if not most or not first or logged - offset_of(first) <= most then return false end
  local low, high = tonumber(string.match(first[1], '^%d+')), now + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local entry = redis.call('XRANGE', log, string.format('%.0f', middle), '+', 'COUNT', 1)[1]
    if entry and offset_of(entry) < logged - most then low = middle + 1 else high = middle end
  end
  return redis.call('XTRIM', log, 'MINID', '~', string.format('%.0f', low), 'LIMIT', 10000) >= 9000
end
