-- fit: a reply brings 4 MiB of payloads, a payload more or less; tasks that are beyond wait for the next call
-- fit: as many of these tasks as one reply brings, and their payloads; without payloads if no task of the queue has any
local function fit(ids)
  if redis.call('EXISTS', payload) == 0 then return ids end
  local bodies, bytes = {}, 0
  while #bodies < #ids and bytes < 4194304 do
    local some = redis.call('HMGET', payload, unpack(ids, #bodies + 1, math.min(#bodies + 8, #ids)))
    for i = 1, #some do
      if bytes < 4194304 then bodies[#bodies + 1], bytes = some[i], bytes + (some[i] and #some[i] or 0) end
    end
  end
  return {unpack(ids, 1, #bodies)}, bodies
end
