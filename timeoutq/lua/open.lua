-- open: what begins each call: its clock, the settings of its queue, the names of its keys.
--
-- This is the first of the files of one library, which a server loads once; they are joined in the order that `scripts.py` gives. A function
-- of the library does one step of the queue: nothing else runs on the server meanwhile. The files of verbs (put, claim, ack, …) register the
-- functions that clients call; the other files are rooms, and hand functions to them through a table that has the room's name.
--
-- Called as FCALL timeoutq5_VERB 2 META LOCK ARGS..., and FCALL_RO if the verb only reads. META is the queue's settings, for example
-- timeoutq:{crawl}:meta; the names of all keys of a queue begin with all but its last word. LOCK is timeoutq:{crawl}:lock:, which is never
-- there: so a node of a cluster from which the slot moves refuses a call before it begins, with TRYAGAIN or ASK. The first two ARGS of every verb are the id of the
-- call, and how many ms ago it was sent for the first time, 0 for a call that was not sent before.

-- While a server loads a library, Lua's own names are not there yet: `begin` takes them at the first call
local function lua_names()
  return string, table, math, table.unpack or unpack, tonumber, tostring, type, pairs, ipairs, next, select, pcall, setmetatable,
    redis.call, redis.pcall, redis.sha1hex, redis.acl_check_cmd
end
local string, table, math, unpack, tonumber, tostring, type, pairs, ipairs, next, select, pcall, setmetatable
local quiet, try, sha1hex -- a command that the event log does not look at; one that gives its error as a value
local may -- whether the user may call a command; an error if the server has no such command
local call -- a command; on a queue with an event log, the log notes what it moves

-- What `begin` fills at each call. Nothing else of a call is kept, but for the rooms that its queue uses: these begin with it.
local args -- the words of the call
local time, now -- the clock of the server: {seconds, µs}; and in ms
local key, prefix -- key.todos is the name of the key `todos` of this queue, and `prefix` is what the names of all its keys begin with
local schema, uses -- settings that each call reads; `uses` are the words of the capabilities
local setting -- the other fields of meta: setting.paused. Those that the verb names are read when it begins, others when they are asked for
local using -- which capabilities the queue uses: the words of `uses`, as a table

-- The rooms, each a table of the functions that it hands to others.
local server, wake, events, leases, calls, settings, kinds, failures, priority, lasting, progress = {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}
local batches, results, by_id, by_print, groups, plain, hosts, rerun, cancel, find, tasks, schedules, walk = {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}
local ready, done -- `plain` or `hosts`, and `by_id` or `by_print`: whichever this queue uses
local waiting, polite, compact, rules, logging -- the set of tasks that wait for a turn, nil on a queue without turns; …

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

-- count_up: add to a counter; one that holds no number begins anew, for a function must not stop after its first write
local function count_up(name, field, by)
  local count = try('HINCRBY', name, field, by)
  if type(count) == 'number' then return count end
  local said = tostring(count.err)
  if not (string.find(said, 'integer', 1, true) or string.find(said, 'overflow', 1, true)) then
    return quiet('HINCRBY', name, field, by)
  end
  quiet('HDEL', name, field)
  quiet('HSET', name, field, by)
  return by
end

-- has: does the queue use this capability? `uses` is the one field of meta that says so: words with blanks between them, or nothing.
-- Settings of a capability count only where the queue uses the capability
local function has(capability)
  return using[capability] or false
end

-- capabilities: the words of `uses`, as a table
local function capabilities(text)
  local found = {}
  for word in string.gmatch(text, '%S+') do found[word] = true end
  return found
end

-- of_queue: makes the names of keys when they are first asked for. They are kept for the next call, which is often of the same queue
local of_queue = {__index = function(names, name)
  names[name] = names.prefix_ .. name
  return names[name]
end}
local no_words = {}

-- the words of `uses` of the last call that had any, for the next call
local text_of_words, words_of_text

-- named: the name of a key whose last word is worked out, such as host:NAME
local function named(name)
  return prefix .. name
end

-- by_name: gives the fields of a reply to HMGET by their names; a field that is not among them is read when it is asked for. A field that
-- meta does not have is false
local function by_name(names)
  local places = {}
  for i = 1, #names do places[names[i]] = i end
  return {__index = function(fields, name)
    local at = places[name]
    if at then return fields[at] end
    fields[name] = quiet('HGET', key.meta, name)
    return fields[name]
  end}
end

-- begin: read what each call needs: of meta, the fields `reads`, which `named_fields` gives by their names. Gives an error if the queue is of another schema: the call replies with
-- it and writes nothing
local function begin(meta, words, reads, named_fields)
  if not string then
    string, table, math, unpack, tonumber, tostring, type, pairs, ipairs, next, select, pcall, setmetatable, quiet, try, sha1hex, may = lua_names()
    setmetatable(by_print, {__index = by_id}) -- what fingerprints need not do in a way of their own
  end
  args, time = words, quiet('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  if not key or key.meta ~= meta then
    prefix = string.sub(meta, 1, -5)
    key = setmetatable({meta = meta, prefix_ = prefix}, of_queue)
  end
  setting = setmetatable(quiet('HMGET', meta, unpack(reads)), named_fields)
  schema, uses = setting[1], setting[2]
  if schema and schema ~= '3' then return {err = 'SCHEMA the queue has schema ' .. schema} end
  failures.begin()
  using, call, logging, waiting, polite, compact, ready, done = no_words, quiet, false, nil, false, false, plain, by_id
  if uses then
    if uses ~= text_of_words then text_of_words, words_of_text = uses, capabilities(uses) end
    using = words_of_text
    if using.events then events.begin() end
    if using.politeness then hosts.begin() end
    if using.compact then by_print.begin() end
  end
end

local SETTINGS = {'schema', 'uses', 'paused', 'lease_ms', 'wake_at', 'keep_done', 'max_crashes', 'politeness'}

-- verb: register a function that clients call. `by` says which of its words tells the event log who calls, 1 if it is missing: the id of a call
-- begins with the name of its client; `reads` are the settings that it reads at once, all that there are if it is missing; `as` gives what the log calls it, if it does several things. A server without memory left refuses a
-- function without the flag allow-oom, and limits none that has the flag. So a verb that must go through, but may also write much, is there
-- twice: with the flag, and as NAME_if_room without it
local function verb(name, how, carry_out)
  local reads = how.reads or SETTINGS
  local named_fields = by_name(reads)
  local function called(keys, words)
    local refused = begin(keys[1], words, reads, named_fields)
    if refused then return refused end
    if not logging then return carry_out() end
    local reply = carry_out()
    events.tell(how.as and how.as() or name, words[how.by or 1])
    return reply
  end
  redis.register_function({function_name = NAME .. '_' .. name, flags = how.flags, callback = called})
  if how.if_room then redis.register_function(NAME .. '_' .. name .. '_if_room', called) end
end

-- about: which library this is. A client with a newer revision replaces it
redis.register_function({function_name = NAME .. '_about', flags = {'no-writes'}, callback = function()
  return {REVISION, DIGEST}
end})
