-- mark: on a durable queue, a call that has nothing to write writes all the same: WAIT waits for what its own connection has
-- written, so that a WAIT behind it waits for the call, too, that has changed all of this before
local function mark()
  if not has('durable') then return end
  even_when_full()
  redis.call('HSET', meta, 'mark', now)
end
