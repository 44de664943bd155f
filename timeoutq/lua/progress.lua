-- progress: how far the handlers of tasks in progress are, as they say themselves. A queue uses this as soon as one has said so
-- progress  of each of these tasks: when it was said, ms; how much is done, and of how much, - if nobody knows; and a text

-- forget_progress: the leases on these tasks have ended
function progress.forget(ids)
  if has('progress') then call('HDEL', key.progress, unpack(ids)) end
end
