-- progress: how far the handlers of tasks in progress are, as they say themselves. A queue uses this as soon as one has said so
-- progress  of each of these tasks: when it was said, ms; how much is done, and of how much, - if nobody knows; and a text
local forget_progress

if uses then
  -- forget_progress: the leases on these tasks have ended
  function forget_progress(ids)
    if has('progress') then redis.call('HDEL', key('progress'), unpack(ids)) end
  end
end
