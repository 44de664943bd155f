-- polite: on a polite queue, ready tasks of a host wait in a set of its own until it is the host's turn. Needs wake, log.
-- waiting   all that wait                  host:NAME  those of one host
-- hosts     when it is a host's turn; inf while it waits for no time: full, used up, banned, or nothing waits
-- slots     what of a host is in todos or in_progress, as (length ':' id) *
-- visits    'visits failures next', the last one the time at which the host may be visited again
-- policies  'delay per_host budget until flag reason', - for what the queue's own politeness says; flag b x or -
-- groups    the hosts of tasks that were put with one
-- A script says what arrives (enters the wait) and departs (leaves todos or in_progress), then calls turn() once.
local polite = settings[7]
local waiting, hosts_of, load_hosts, arrive, depart, abandon, enter, turn, regroup, ungroup, recall, block
local write_policy, host_row, holds, occupy, dissolve
if polite then
  local prefix = string.sub(meta, 1, -5)
  local hosts, slots, groups = prefix .. 'hosts', prefix .. 'slots', prefix .. 'groups'
  local policies, visits, lane = prefix .. 'policies', prefix .. 'visits', prefix .. 'host:'
  local usual_delay, usual_per_host = string.match(polite, '^(%d+) (%d+)')
  local known, order, host_of = {}, {}, nil
  waiting = prefix .. 'waiting'

  -- the bytes of a label in RFC 3492's form
  local function punycode(label)
    -- capitals: first, last, step, and how far their small letters are
    local capitals = {
      {192, 214, 1, 32}, {216, 222, 1, 32}, {256, 302, 2, 1}, {306, 310, 2, 1}, {313, 327, 2, 1}, {330, 374, 2, 1},
      {376, 376, 1, -121}, {377, 381, 2, 1}, {416, 420, 2, 1}, {431, 431, 1, 1}, {902, 902, 1, 38}, {904, 906, 1, 37},
      {908, 908, 1, 64}, {910, 911, 1, 63}, {913, 929, 1, 32}, {931, 939, 1, 32}, {1024, 1039, 1, 80},
      {1040, 1071, 1, 32}, {1120, 1152, 2, 1}, {1162, 1214, 2, 1}, {1216, 1216, 1, 15}, {1217, 1229, 2, 1},
      {1232, 1326, 2, 1}, {7680, 7828, 2, 1}, {7838, 7838, 1, -7615}, {7840, 7934, 2, 1},
    }
    local points, out, at = {}, {}, 1
    while at <= #label do
      local a = string.byte(label, at)
      local size = a < 128 and 1 or a >= 240 and 4 or a >= 224 and 3 or a >= 192 and 2 or 0
      if size == 0 or at + size - 1 > #label then return label end
      local point = size == 1 and a or a % 2 ^ (7 - size)
      for i = at + 1, at + size - 1 do point = point * 64 + string.byte(label, i) % 64 end
      for i = 1, #capitals do
        local first, last, step, away = unpack(capitals[i])
        if point >= first and point <= last and (point - first) % step == 0 then
          point = point + away
          break
        end
      end
      points[#points + 1] = point
      at = at + size
    end
    for i = 1, #points do
      if points[i] < 128 then out[#out + 1] = string.char(points[i]) end
    end
    local basic, delta, bias, n = #out, 0, 72, 128
    local handled = basic
    if basic > 0 then out[#out + 1] = '-' end
    while handled < #points do
      local least = math.huge
      for i = 1, #points do
        if points[i] >= n and points[i] < least then least = points[i] end
      end
      delta, n = delta + (least - n) * (handled + 1), least
      for i = 1, #points do
        if points[i] < n then
          delta = delta + 1
        elseif points[i] == n then
          local q, k = delta, 36
          while true do
            local t = k <= bias and 1 or k >= bias + 26 and 26 or k - bias
            if q < t then break end
            local digit = t + (q - t) % (36 - t)
            out[#out + 1] = string.char(digit < 26 and digit + 97 or digit + 22)
            q, k = math.floor((q - t) / (36 - t)), k + 36
          end
          out[#out + 1] = string.char(q < 26 and q + 97 or q + 22)
          delta = handled == basic and math.floor(delta / 700) or math.floor(delta / 2)
          delta, k = delta + math.floor(delta / (handled + 1)), 0
          while delta > 455 do
            delta, k = math.floor(delta / 35), k + 36
          end
          bias, delta, handled = k + math.floor(36 * delta / (delta + 38)), 0, handled + 1
        end
      end
      delta, n = delta + 1, n + 1
    end
    return 'xn--' .. table.concat(out)
  end

  -- host_of: the host of a URL as RFC 3986 has it: lower case, port kept unless it is the scheme's own; false for others
  function host_of(id)
    local scheme, name = string.match(id, '^(%a[%w+.-]*)://([^/?#\\]*)')
    if not scheme then return false end
    name = string.lower(string.match(name, '[^@]*$'))
    if string.find(name, '[\128-\255]') then
      name = string.gsub(name, '\227\128\130', '.')
      name = string.gsub(name, '[^.:]+', function(label)
        return string.find(label, '[\128-\255]') and punycode(label) or label
      end)
    end
    local port = string.match(name, ':(%d*)$')
    if port then
      scheme = string.lower(scheme)
      if port == '' or (port == '80' and scheme == 'http') or (port == '443' and scheme == 'https') then
        name = string.sub(name, 1, -2 - #port)
      end
    end
    name = string.gsub(name, '%.+$', '')
    name = string.gsub(name, '%.+:', ':')
    return name ~= '' and name
  end

  function hosts_of(ids, group)
    local names = {}
    if group and group ~= '' then
      for i = 1, #ids do names[i] = group end
      return names
    end
    local given = redis.call('EXISTS', groups) == 1 and redis.call('HMGET', groups, unpack(ids)) or {}
    for i = 1, #ids do names[i] = given[i] or host_of(ids[i]) end
    return names
  end

  -- regroup: keep the host that tasks were put with; ungroup: forget it
  function regroup(ids, group)
    if not group or group == '' then return end
    local pairs = {}
    for i = 1, #ids do pairs[2 * i - 1], pairs[2 * i] = ids[i], group end
    redis.call('HSET', groups, unpack(pairs))
  end

  function ungroup(ids)
    redis.call('HDEL', groups, unpack(ids))
  end

  -- cut: a clock that stepped back, or a longer rule of before, would make the pause longer than anybody asks for now
  local function cut(one)
    if one.next_ms > now + one.delay then
      one.next_ms, one.counted = now + one.delay, true
    end
  end

  -- load_hosts: read what is kept of the hosts that this call has not met yet; gives all that it has met, by name
  function load_hosts(names)
    local fresh = {}
    for i = 1, #names do
      local name = names[i]
      if name and not known[name] then
        known[name] = true
        fresh[#fresh + 1] = name
      end
    end
    if #fresh == 0 then return known end
    local held, seen = redis.call('HMGET', slots, unpack(fresh)), redis.call('HMGET', visits, unpack(fresh))
    local rules = redis.call('EXISTS', policies) == 1 and redis.call('HMGET', policies, unpack(fresh)) or {}
    for i = 1, #fresh do
      local one = {name = fresh[i], held = {}, delay = tonumber(usual_delay), per_host = tonumber(usual_per_host),
        until_ms = 0, flag = '-', reason = '', visits = 0, failures = 0, next_ms = 0}
      local packed, at = held[i] or '', 1
      while at <= #packed do
        local _, stop, size = string.find(packed, '^(%d+):', at)
        one.held[#one.held + 1] = string.sub(packed, stop + 1, stop + size)
        at = stop + size + 1
      end
      if seen[i] then
        local a, b, c = string.match(seen[i], '^(%d+) (%d+) (%d+)')
        one.visits, one.failures, one.next_ms = tonumber(a), tonumber(b), tonumber(c)
      end
      if rules[i] then
        local delay, per_host, budget, until_ms, flag, reason = string.match(rules[i], '^(%S+) (%S+) (%S+) (%S+) (%S) ?(.*)$')
        one.own_delay, one.own_per_host, one.budget = tonumber(delay), tonumber(per_host), tonumber(budget)
        one.delay, one.per_host = one.own_delay or one.delay, one.own_per_host or one.per_host
        one.until_ms, one.flag, one.reason = tonumber(until_ms), flag, reason
      end
      known[fresh[i]] = one
      cut(one)
      order[#order + 1] = one
    end
    return known
  end

  -- arrive: these are in `waiting` already
  function arrive(ids, names)
    load_hosts(names)
    local by_host, met = {}, {}
    for i = 1, #ids do
      local name = names[i]
      if name then
        if not by_host[name] then
          by_host[name] = {}
          met[#met + 1] = name
        end
        local some = by_host[name]
        some[#some + 1] = ids[i]
      end
    end
    for i = 1, #met do
      redis.call('SADD', lane .. met[i], unpack(by_host[met[i]]))
    end
  end

  -- depart: a visit of these is over, or will not be made; `visited` and `broken` are what each counts for
  function depart(ids, names, visited, broken)
    load_hosts(names)
    for i = 1, #ids do
      local one = names[i] and known[names[i]]
      if one then
        local held = one.held
        for j = 1, #held do
          if held[j] == ids[i] then
            table.remove(held, j)
            one.moved = true
            break
          end
        end
        one.visits, one.failures = one.visits + visited, one.failures + broken
        one.next_ms, one.counted = math.max(one.next_ms, now + one.delay), true
      end
    end
  end

  -- recall: what no worker has claimed yet waits again
  function recall(one)
    for j = #one.held, 1, -1 do
      local id = one.held[j]
      if redis.call('SMOVE', todos, waiting, id) == 1 then
        redis.call('SADD', lane .. one.name, id)
        table.remove(one.held, j)
        one.moved = true
      end
    end
  end

  -- block: no more visits of a host before a time
  function block(name, until_ms, by)
    local one = load_hosts({name})[name]
    if one.flag ~= 'x' and until_ms > one.until_ms then
      one.until_ms, one.flag, one.reason = until_ms, 'b', by
      recall(one)
      write_policy(one)
    end
  end

  -- abandon: one that waited is gone
  function abandon(id, name)
    if not name then return end
    redis.call('SREM', lane .. name, id)
    load_hosts({name})
  end

  -- holds: has this task a slot of its host; occupy: it has one from now on
  function holds(name, id)
    local held = known[name].held
    for j = 1, #held do
      if held[j] == id then return true end
    end
    return false
  end

  function occupy(name, id)
    local one = known[name]
    one.held[#one.held + 1], one.moved = id, true
  end

  -- dissolve: the queue is polite no more; nothing waits
  function dissolve()
    redis.call('DEL', hosts, slots, groups, visits, policies)
  end

  -- enter: new ids become ready, at once or when it is their host's turn; gives how many they are
  function enter(ids, group)
    local names, free, bound, bound_names = hosts_of(ids, group), {}, {}, {}
    local count = 0
    for i = 1, #ids do
      if names[i] then
        bound[#bound + 1], bound_names[#bound_names + 1] = ids[i], names[i]
      else
        free[#free + 1] = ids[i]
      end
    end
    if #free > 0 then
      count = redis.call('SADD', todos, unpack(free))
      if redis.call('SCARD', todos) == count then
        redis.call('HSET', stats, 'todos_since', now)
      end
      ring()
    end
    if #bound > 0 then
      count = count + redis.call('SADD', waiting, unpack(bound))
      regroup(bound, group)
      arrive(bound, bound_names)
    end
    turn()
    return count
  end

  local function refuse(one)
    local ids = redis.call('SPOP', lane .. one.name, 500)
    for i = 1, #ids do
      if redis.call('SMOVE', waiting, prefix .. 'failed', ids[i]) == 1 then
        log_error(ids[i], 'gave up: host ' .. one.name .. ' is banned: ' .. one.reason)
        redis.call('HINCRBY', stats, 'gave_up', 1)
      end
    end
    return #ids == 500 and now or math.huge
  end

  -- turn: hand over what each host that was loaded may have, say when it is its turn again, and write all down
  function turn()
    local scores, held, seen, gone, handed, soonest = {}, {}, {}, {}, 0, math.huge
    for i = 1, #order do
      local one = order[i]
      local free, at = one.per_host - #one.held, math.max(one.next_ms, one.until_ms)
      if one.budget then free = math.min(free, one.budget - one.visits - #one.held) end
      local score = math.huge
      if one.flag == 'x' then
        score = refuse(one)
      elseif free > 0 and at > now then
        if redis.call('EXISTS', lane .. one.name) == 1 then score = at end
      elseif free > 0 then
        local ids = redis.call('SPOP', lane .. one.name, free)
        for j = 1, #ids do
          if redis.call('SMOVE', waiting, todos, ids[j]) == 1 then
            one.held[#one.held + 1] = ids[j]
            one.moved, handed = true, handed + 1
          end
        end
      end
      soonest = math.min(soonest, score)
      scores[2 * i - 1], scores[2 * i] = score == math.huge and '+inf' or score, one.name
      if one.moved then
        if #one.held == 0 then
          gone[#gone + 1] = one.name
        else
          local packed = {}
          for j = 1, #one.held do packed[j] = #one.held[j] .. ':' .. one.held[j] end
          held[#held + 1] = one.name
          held[#held + 1] = table.concat(packed)
        end
        one.moved = nil
      end
      if one.counted then
        seen[#seen + 1] = one.name
        seen[#seen + 1] = one.visits .. ' ' .. one.failures .. ' ' .. string.format('%.0f', one.next_ms)
        one.counted = nil
      end
    end
    if #gone > 0 then redis.call('HDEL', slots, unpack(gone)) end
    if #held > 0 then redis.call('HSET', slots, unpack(held)) end
    if #seen > 0 then redis.call('HSET', visits, unpack(seen)) end
    if #scores > 0 then redis.call('ZADD', hosts, unpack(scores)) end
    if soonest < math.huge then rouse(soonest) end
    if handed > 0 then
      if redis.call('SCARD', todos) == handed then
        redis.call('HSET', stats, 'todos_since', now)
      end
      ring()
    end
    return handed
  end

  -- write_policy: keep the rules of a host
  function write_policy(one)
    one.delay, one.per_host = one.own_delay or tonumber(usual_delay), one.own_per_host or tonumber(usual_per_host)
    cut(one)
    local text = {one.own_delay or '-', one.own_per_host or '-', one.budget or '-',
      string.format('%.0f', one.until_ms), one.flag, one.reason}
    text = table.concat(text, ' ')
    if text == '- - - 0 - ' then
      redis.call('HDEL', policies, one.name)
    else
      redis.call('HSET', policies, one.name, text)
    end
  end

  -- host_row: what is known of a loaded host, for people
  function host_row(name)
    local one = known[name]
    local score = redis.call('ZSCORE', hosts, name)
    return {name, redis.call('SCARD', lane .. name), one.held, score or false, one.delay, one.per_host,
      one.budget or -1, one.visits, one.failures, string.format('%.0f', one.next_ms),
      string.format('%.0f', one.until_ms), one.flag, one.reason}
  end
end
