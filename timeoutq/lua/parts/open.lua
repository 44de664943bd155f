-- open: the one clock reading of the script, the settings by name, and the check that we understand this queue
local unpack = table.unpack or unpack
-- number: the whole number that a field holds; what a foreign hand has written, and is none, counts as absent
local function number(text, default)
  local found = tonumber(text or nil)
  -- false for NaN, too: it is in no order
  if found and found >= -9007199254740992 and found <= 9007199254740992 then return math.floor(found) end
  return default
end

-- moment: the time that a score holds, ms; nil when it is beyond the year 9999, or infinite: then it is no time
local function moment(score)
  if score == '-inf' then return 1 end
  local at = tonumber(score or nil)
  if at and at < 253402300800000 then return at > 1 and at or 1 end
end

-- count_up: add to a counter; one that holds no number begins anew, for a script must not stop after its first write
local function count_up(key, field, by)
  local count = redis.pcall('HINCRBY', key, field, by)
  if type(count) == 'number' then return count end
  local said = tostring(count.err)
  if not (string.find(said, 'integer', 1, true) or string.find(said, 'overflow', 1, true)) then
    return redis.call('HINCRBY', key, field, by)
  end
  redis.call('HDEL', key, field)
  redis.call('HSET', key, field, by)
  return by
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local schema, uses, paused, longest_lease, wake_at, keep_done, max_crashes, politeness = unpack(redis.call('HMGET', meta,
  'schema', 'uses', 'paused', 'lease_ms', 'wake_at', 'keep_done', 'max_crashes', 'politeness'))
if schema and schema ~= '3' then
  return {err = 'SCHEMA the queue has schema ' .. schema}
end
paused, keep_done, max_crashes = paused == '1', keep_done or 'forever', number(max_crashes, 5)
longest_lease = number(longest_lease) -- ms; nil while nobody has claimed
wake_at = number(wake_at or 0, math.huge) -- one that cannot be read wakes the cleaners too often, not too rarely
local prefix = string.sub(meta, 1, -5) -- what the names of all keys of this queue begin with

-- key: the name of a key of this queue that is not among KEYS. No other place makes such a name
local function key(name)
  return prefix .. name
end

-- has: does the queue use this capability? `uses` is the one field of meta that says so: words with blanks between them, or
-- nothing. Settings of a capability count only where the queue uses the capability
local function has(capability)
  return uses and string.find(' ' .. uses .. ' ', ' ' .. capability .. ' ', 1, true) and true or false
end

-- rarely: a function that few calls need. It is made when it is first asked for, with all that only such functions call;
-- `scripts.py` puts them into make_late()
local late, make_late
local function rarely(name)
  late = late or make_late()
  return late[name]
end

-- even_when_full: a server that has no memory left refuses a script at its first command that may need memory, but no script
-- that has already written. So a script that must go through on a full server, because it ends or moves something, first
-- deletes a field that is never there
local function even_when_full()
  redis.call('HDEL', meta, '')
end
