-- open: what begins each call: its clock, the settings of its queue, the names of its keys.
--
-- A server loads all these files once, joined in the order of `scripts.py`. Each verb (put, claim, ack, …) is a
-- function that clients call, as FCALL timeoutq5_VERB 2 META LOCK ARGS..., or FCALL_RO if the verb only reads: one step
-- of the queue, in which nothing else runs on the server. The other files are rooms: tables of functions that the verbs
-- share. META is the key of the queue's settings, timeoutq:{crawl}:meta; the names of all its keys begin with all but
-- the last word. LOCK is timeoutq:{crawl}:lock:, which is never there: so a node of a cluster from which the slot moves
-- refuses a call before it begins, with TRYAGAIN or ASK. The first two ARGS of every verb are the id of the call, and
-- how many ms ago it was first sent.

-- While a server loads a library, Lua's own names are not there yet: `begin` takes them at the first call
local function lua_names()
  return string, table, math, table.unpack or unpack, tonumber, tostring, type, pairs, ipairs, next, pcall, setmetatable,
    redis.call, redis.pcall, redis.sha1hex, redis.acl_check_cmd
end
local string, table, math, unpack, tonumber, tostring, type, pairs, ipairs, next, pcall, setmetatable
local quiet, try, sha1hex -- a command that the event log does not look at; one that gives its error as a value
local may -- whether the user may call a command; an error if the server has no such command
local call -- a command; on a queue with an event log, the log notes what it moves

-- What `begin` fills at each call. Nothing else of a call is kept, but for the rooms that its queue uses: these begin
-- with it.
local args -- the words of the call
local time, now -- the clock of the server: {seconds, µs}; and in ms
local key, prefix -- key.todos is the name of the key `todos` of this queue; all its names begin with `prefix`
local schema, uses, using -- settings that each call reads; `using` has the words of `uses`, the queue's capabilities, as a table
local setting -- the fields of meta by name, false for none: those that the verb reads at once, others when they are asked for

-- The rooms
local events, wake, leases, calls, settings, kinds, failures, priority, lasting, batches = {}, {}, {}, {}, {}, {}, {}, {}, {}, {}
local results, by_id, by_print, groups, plain, hosts, rerun, cancel, find, tasks, schedules = {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}
local ready, done -- `plain` or `hosts`, and `by_id` or `by_print`: whichever this queue uses
local waiting, polite, compact, rules, logging -- the set of tasks that wait for a turn, nil on a queue without turns
-- `polite`: hosts have turns, by `rules`, the setting; `compact`: done keeps fingerprints; `logging`: calls are written to `events`

-- number: the number that a field holds; one that holds none counts as absent
local function number(text, default)
  return tonumber(text or nil) or default
end

-- moment: the time that a score holds, ms; nil for none, and beyond the year 9999
local function moment(score)
  local at = tonumber(score or nil)
  if at and at < 253402300800000 then return math.max(at, 1) end
end

-- whole: a number as text, without an exponent
local function whole(count)
  return string.format('%.0f', count)
end

-- shown: an id, as the message of an error shows it
local function shown(id, most)
  return (string.gsub(string.sub(id, 1, most or 80), '%c', '?'))
end

-- some: a command with these words, if there are any
local function some(command, name, words)
  if #words > 0 then return call(command, name, unpack(words)) end
end

-- alike: words that give these ids the same score or value: score id score id; or, for a hash, id value id value
local function alike(ids, value, of_hash)
  if #ids == 1 then return of_hash and {ids[1], value} or {value, ids[1]} end
  local words = {}
  for i = 1, #ids do
    words[2 * i - 1], words[2 * i] = of_hash and ids[i] or value, of_hash and value or ids[i]
  end
  return words
end

-- chosen: those of the ids where which[i] is true; the list itself, if these are all
local function chosen(ids, which)
  for i = 1, #ids do
    if not which[i] then
      local found = {unpack(ids, 1, i - 1)}
      for at = i + 1, #ids do
        if which[at] then found[#found + 1] = ids[at] end
      end
      return found
    end
  end
  return ids
end

-- every_other: the first, third, fifth … of these words
local function every_other(words)
  local found = {}
  for i = 1, #words, 2 do found[#found + 1] = words[i] end
  return found
end

-- count_up: add to a counter; one that holds no number begins anew
local function count_up(name, field, by)
  local count = try('HINCRBY', name, field, by)
  if type(count) == 'number' then return count end
  quiet('HDEL', name, field)
  return quiet('HINCRBY', name, field, by)
end

-- has: does the queue use this capability? Settings of a capability count only where the queue uses the capability
local function has(capability)
  return using[capability] or false
end

-- capabilities: the words of `uses`, as a table
local function capabilities(text)
  local found = {}
  for word in string.gmatch(text, '%S+') do found[word] = true end
  return found
end

-- of_queue: makes the names of keys when they are first asked for, and keeps them for the next call of the same queue
local of_queue = {__index = function(names, name)
  names[name] = names.prefix_ .. name
  return names[name]
end}
local none = {} -- a list for whoever needs an empty one to read; nobody writes into it
local text_of_words, words_of_text -- the last `uses` that had any words, and these

-- named: the name of a key whose last word is worked out, such as host:NAME
local function named(name)
  return prefix .. name
end

-- begin: fill what each call needs; `reads` are the names of the settings that the verb reads at once. Gives an error
-- if the queue is of another schema: the call replies with it and writes nothing
local function begin(meta, words, reads)
  if not string then
    string, table, math, unpack, tonumber, tostring, type, pairs, ipairs, next, pcall, setmetatable,
      quiet, try, sha1hex, may = lua_names()
    setmetatable(by_print, {__index = by_id}) -- what fingerprints need not do in a way of their own
  end
  args, time = words, quiet('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  if not key or key.meta ~= meta then
    prefix = string.sub(meta, 1, -5)
    key = setmetatable({meta = meta, prefix_ = prefix}, of_queue)
  end
  setting = setmetatable(quiet('HMGET', meta, unpack(reads)), reads)
  schema, uses = setting[1], setting[2]
  if schema and schema ~= '3' then return {err = 'SCHEMA the queue has schema ' .. schema} end
  failures.begin()
  using, call, logging, waiting, polite, compact, ready, done = none, quiet, false, nil, false, false, plain, by_id
  if uses then
    if uses ~= text_of_words then text_of_words, words_of_text = uses, capabilities(uses) end
    using = words_of_text
    if using.events then events.begin() end
    if using.politeness then hosts.begin() end
    if using.compact then by_print.begin() end
  end
end

-- by_name: have the reply to HMGET of these names give its fields by name
local function by_name(reads)
  local places = {}
  for i = 1, #reads do places[reads[i]] = i end
  function reads.__index(fields, name)
    if places[name] then return fields[places[name]] end
    fields[name] = quiet('HGET', key.meta, name)
    return fields[name]
  end
  return reads
end

local SETTINGS = {'schema', 'uses', 'paused', 'lease_ms', 'wake_at', 'keep_done', 'max_crashes', 'politeness'}

-- verb: register a function that clients call. `how` has its flags; in `by`, which of its words tells the event log who
-- calls, for the id of a call begins with the name of its client; in `as`, what the log calls it, if it does several
-- things; in `reads`, the settings that it reads at once. A server without memory left refuses a function without the
-- flag allow-oom, and limits none that has the flag. So a verb that must go through, but may also write much, is there
-- twice: with the flag, and as NAME_if_room without it
local function verb(name, how, carry_out)
  local reads = by_name(how.reads or SETTINGS)
  local function called(keys, words)
    local refused = begin(keys[1], words, reads)
    if refused then return refused end
    local reply = carry_out()
    if logging then events.tell(how.as and how.as() or name, words[how.by or 1]) end
    return reply
  end
  redis.register_function({function_name = NAME .. '_' .. name, flags = how.flags, callback = called})
  if how.if_room then redis.register_function(NAME .. '_' .. name .. '_if_room', called) end
end

-- about: which library this is. A client with a newer revision replaces it
redis.register_function({function_name = NAME .. '_about', flags = {'no-writes'}, callback = function()
  return {REVISION, DIGEST}
end})
