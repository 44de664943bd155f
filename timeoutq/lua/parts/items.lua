-- items: read the leases of a call, ARGV[first..] = count, then runs of: token, length, id * length
local function read_leases(first)
  local ids, tokens = {}, {}
  local count, at = tonumber(ARGV[first]), first + 1
  while #ids < count do
    local token = ARGV[at]
    for i = at + 2, at + 1 + tonumber(ARGV[at + 1]) do
      ids[#ids + 1], tokens[#ids + 1] = ARGV[i], token
    end
    at = at + 2 + tonumber(ARGV[at + 1])
  end
  return ids, tokens, at
end

-- mine: which of the ids are still leased to their tokens; late is not lost while nobody took the task back
local function mine(ids, tokens)
  local held, yes = redis.call('HMGET', owners, unpack(ids)), {}
  for i = 1, #ids do
    yes[i] = held[i] == tokens[i]
  end
  return yes
end
