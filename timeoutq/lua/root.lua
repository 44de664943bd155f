-- root: make the record of a queue over several shards, where nothing has this name yet; and give what is recorded.
-- KEYS  lock meta todos in_progress done failed scheduled
-- ARGV  1 call id   2 age of the call, ms   3 the shards, as `12 host v1`   4 1 when tasks with groups are put
-- Reply {schema, shards, groups}: false where there is none; all false when a plain queue without settings has this name
-- The record has a schema of its own, so that a client that knows no shards refuses it. That is why this script is the only one
-- without `open`
local schema, shards = redis.call('HGET', meta, 'schema'), redis.call('HGET', meta, 'shards')
if not schema then
  if redis.call('EXISTS', todos, in_progress, done, failed, scheduled) > 0 then return {false, false, false} end
  schema, shards = 's1', ARGV[3]
  redis.call('HSET', meta, 'schema', schema, 'shards', shards)
end
if schema == 's1' and shards == ARGV[3] and ARGV[4] == '1' then redis.call('HSET', meta, 'groups', '1') end
return {schema, shards, redis.call('HGET', meta, 'groups')}
