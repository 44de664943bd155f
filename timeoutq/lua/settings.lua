-- settings: which capabilities a queue uses, and the settings that begin or end one
do
  -- use: from now on, the queue uses a capability, or no longer does
  function settings.use(capability, on)
    if has(capability) == on then return end
    local words = {}
    for word in string.gmatch(uses or '', '%S+') do
      if word ~= capability then words[#words + 1] = word end
    end
    if on then words[#words + 1] = capability end
    uses = #words > 0 and table.concat(words, ' ') or false
    using = capabilities(uses or '')
    if uses then call('HSET', key.meta, 'uses', uses) else call('HDEL', key.meta, 'uses') end
  end

  -- exists: the queue has something now, so it has a schema
  function settings.exists()
    if not schema then call('HSETNX', key.meta, 'schema', '3') end
  end

  -- salt_of: the salt that comes with keep_done "compact"; nil for any other value
  local function salt_of(value)
    return string.match(value, '^compact (%w+)$')
  end

  -- known_tasks: how many tasks the queue has, done ones counted
  local function known_tasks()
    local known = call('ZCARD', key.scheduled)
    for _, set in ipairs({'todos', 'waiting', 'in_progress', 'done', 'failed'}) do known = known + call('SCARD', named(set)) end
    return known
  end

  -- cannot_switch: why a setting cannot be written now, as an error; nil if it can
  function settings.cannot_switch(name, value)
    local salt = salt_of(value)
    if name ~= 'keep_done' or salt and has('compact') then return nil end
    if has('compact') then
      local count = number(call('HGET', key.seen, 'count'), 0)
      if count == 0 and call('EXISTS', named('seen:0')) == 0 then return nil end
      return {err = string.format('COMPACT this queue keeps %.0f done tasks as fingerprints, which no other keep_done can read: '
        .. 'keep_done stays "compact" until the queue is purged; for another keep_done use a new queue', count)}
    end
    if value == 'compact' then return {err = 'COMPACT keep_done "compact" comes with a salt'} end
    if not salt then return nil end
    if not sha1hex then return {err = 'COMPACT keep_done="compact" needs a server whose scripts have sha1hex'} end
    local known = known_tasks()
    if known == 0 then return nil end
    return {err = string.format('COMPACT keep_done="compact" can be set only while a queue has no tasks, and this queue has %.0f, '
      .. 'done ones counted: set it on a new queue, then bring the tasks there (timeoutq export OLD | timeoutq import NEW); or purge '
      .. 'this queue first', known)}
  end

  -- switch_done: begin or end to keep done tasks as fingerprints, on a queue without tasks
  local function switch_done(value)
    local salt = salt_of(value)
    if salt and not has('compact') then
      settings.use('compact', true)
      call('HSET', key.seen, 'salt', salt, 'level', 0, 'split', 0, 'count', 0)
    elseif not salt and has('compact') then
      settings.use('compact', false)
      call('UNLINK', key.seen)
    end
    return salt and 'compact' or value
  end

  -- switch_log: begin, change or end the event log: the value is how many bytes it keeps and its level, `-` for what
  -- stays as it is
  local function switch_log(value)
    local old = call('HGET', key.meta, 'events') or ''
    local most, level = string.match(value, '^(%d+) '), string.match(value, '^%S+ (%l+)$')
    most = most or string.match(old, '^(%d+) ') or '64000000'
    level = level or has('events') and string.match(old, ' (%l+)$') or 'all'
    local was = has('events') and (has('ends') and 'ends' or 'all') or 'off'
    if level ~= was then
      settings.use('events', false)
      settings.use('events', level ~= 'off')
      settings.use('ends', level == 'ends')
      local before = count_up(key.stats, 'logged', 60) - 60
      call('XADD', key.events, '*', 'verb', 'configure', 'level', level, 'tasks', known_tasks(), 'offset', whole(before))
    end
    if level ~= 'off' then return most .. ' ' .. level end
    call('HDEL', key.meta, 'events')
  end

  -- switch_politeness: rules that change keep everything where it is; a queue whose politeness has just begun, or
  -- ended, waits for the conversion
  local function switch_politeness(value)
    local was = has('politeness') and (setting.politeness or '')
    -- `off` also lets the waiting tasks go of a queue whose settings somebody has deleted by hand
    if value == 'off' and not was and call('EXISTS', key.waiting) == 0 then return nil, false end
    -- a conversion that has not ended goes on where it is
    if was == value then return nil, call('HEXISTS', key.meta, 'converting') == 1 end
    -- if visits have ended before, nobody knows when: the hosts rest as if it had been just now
    local counts = call('HMGET', key.stats, 'claimed', 'pulled')
    local ended = number(counts[1], 0) + number(counts[2], 0) > call('SCARD', key.in_progress)
    local raised = number(string.match(value, '^%d+'), 0) > number(string.match(was or '', '^%d+'), -1)
    if ended and value ~= 'off' and (not was or string.sub(was, -3) == 'off' or raised) then
      call('HSET', key.resting, '', now)
    end
    call('HSET', key.meta, 'converting', 'p0')
    settings.use('politeness', true)
    return value == 'off' and '0 1000000 off' or value, true
  end

  -- switch: before a setting is written, begin or end its capability. Gives the value to write, nil for none, and
  -- whether `convert` is to be called
  function settings.switch(name, value)
    if name == 'keep_done' then return switch_done(value) end
    if name == 'events' then return switch_log(value) end
    if name == 'politeness' then return switch_politeness(value) end
    if name ~= 'durable' then return value end
    settings.use('durable', value ~= '0')
    if value ~= '0' then return value end
    call('HDEL', key.meta, 'durable', 'mark')
  end
end
