-- by_print: the tasks that are done, as fingerprints: numbers of 63 bits in small sets, about 10 bytes a task. On a
-- queue with keep_done "compact", from its first task on, these functions take the place of those of by_id.lua, and
-- there is no set `done`.
-- seen    salt: what is hashed before each id, so that nobody can choose ids whose fingerprints are equal; count: how
--         many fingerprints there are; level and split: there are 2^level + split sets
-- seen:B  set number B, from 0 on. A server keeps a set of at most 512 numbers as a plain row, 8 bytes a number
-- When there are more than 192 fingerprints per set, one set divides (linear hashing): of set number `split`, one half
-- goes to the new set number 2^level + split. When all 2^level sets have divided, the level rises, and set 0 is next
-- again. The fullest set has about 450
do
  local full, divisions = 192, 4 -- fingerprints per set, on average; and how many sets divide in one call, at most
  local level, split, count, salt
  local half -- 2^level
  local prints, highs, there

  function by_print.begin()
    compact, done = true, by_print
    level, prints, highs, there = nil, {}, {}, {}
  end

  -- set_of: the name of set number `at`, a whole number: in Lua 5.4, 2^n is none, and would give the name seen:4.0
  local function set_of(at)
    return named('seen:' .. at)
  end

  -- read_seen: read `seen` once in a call
  local function read_seen()
    if level then return end
    local row = call('HMGET', key.seen, 'level', 'split', 'count', 'salt')
    level, split, count, salt = number(row[1], 0), number(row[2], 0), number(row[3], 0), row[4] or ''
    half = math.floor(2 ^ level)
  end

  -- set_for: the set to which a fingerprint with these first ten digits belongs
  local function set_for(high)
    local at = high % half
    if at < split then at = high % (2 * half) end
    return set_of(at)
  end

  -- print_of: the set of a task, and its fingerprint, a number of 19 digits whose first is not 0
  local function print_of(id)
    local print = prints[id]
    if print then return set_for(highs[id]), print end
    local digest = sha1hex(salt .. id)
    local high = tonumber(string.sub(digest, 1, 10), 16) % 8000000000 + 1000000000
    print = string.format('%d%09d', high, tonumber(string.sub(digest, 11, 21), 16) % 1000000000)
    prints[id], highs[id] = print, high
    return set_for(high), print
  end

  -- look_up: read which of these tasks are done; each task is read once in a call
  local function look_up(ids)
    read_seen()
    for i = 1, #ids do
      local id = ids[i]
      if there[id] == nil then there[id] = call('SISMEMBER', print_of(id)) == 1 end
    end
  end

  -- divide: divide the next set. What goes to the new set is written there before it leaves the old one
  local function divide()
    local from, to, both = split, split + half, 2 * half
    local moved, gone = {}, {}
    local found = call('SRANDMEMBER', set_of(from), 4000)
    for i = 1, #found do
      local at = (tonumber(string.sub(found[i], 1, 10)) or 0) % both
      if at ~= from then gone[#gone + 1] = found[i] end
      if at == to then moved[#moved + 1] = found[i] end
    end
    if #moved > 0 then call('SADD', set_of(to), unpack(moved)) end
    split = split + 1
    if split == half then level, split, half = level + 1, 0, both end
    call('HSET', key.seen, 'level', level, 'split', split)
    if #gone > 0 then call('SREM', set_of(from), unpack(gone)) end
  end

  function by_print.count()
    read_seen()
    return count
  end

  function by_print.has(id)
    look_up({id})
    return there[id]
  end

  function by_print.among(ids)
    look_up(ids)
    local hits = {}
    for i = 1, #ids do hits[i] = there[ids[i]] and 1 or 0 end
    return hits
  end

  -- keep: these tasks, which are in no state, are done now
  function by_print.keep(ids)
    read_seen()
    local fresh, left = 0, divisions
    for i = 1, #ids do
      local id = ids[i]
      fresh = fresh + (there[id] and 0 or call('SADD', print_of(id)))
      there[id] = true
      -- divide at once: a set that ever had more than 512 numbers is never kept as a plain row again
      if left > 0 and count + fresh > full * (half + split) then
        left = left - 1
        divide()
      end
    end
    count = count + fresh
    if fresh > 0 then call('HSET', key.seen, 'count', count) end
  end

  function by_print.finish(from, ids, which)
    if #ids == 0 then return ids end
    local held, taken, ended = call('SMISMEMBER', from, unpack(ids)), {}, {}
    for i = 1, #ids do
      which[i] = which[i] and held[i] == 1 and not taken[ids[i]]
      if which[i] then taken[ids[i]], ended[#ended + 1] = true, ids[i] end
    end
    if #ended == 0 then return ended end
    by_print.keep(ended)
    call('SREM', from, unpack(ended))
    priority.forget(ended)
    return ended
  end

  function by_print.undo(ids)
    look_up(ids)
    local gone = 0
    for i = 1, #ids do
      local id = ids[i]
      if there[id] then
        gone, there[id] = gone + call('SREM', print_of(id)), false
      end
    end
    if gone == 0 then return end
    count = math.max(0, count - gone)
    call('HSET', key.seen, 'count', count)
  end

  function by_print.revive(id, into)
    if not done.has(id) then return 0 end
    call('SADD', into, id)
    done.undo({id})
    return 1
  end
end
