-- switch: begin and end the capabilities of a queue
-- use: from now on, the queue uses a capability, or no longer does; kept in `uses` of meta, words with blanks between them
do
  function settings.use(capability, on)
    local words = {}
    for word in string.gmatch(uses or '', '%S+') do
      if word ~= capability then words[#words + 1] = word end
    end
    if on then words[#words + 1] = capability end
    uses = #words > 0 and table.concat(words, ' ') or false
    using = capabilities(uses or '')
    if uses then call('HSET', key.meta, 'uses', uses) else call('HDEL', key.meta, 'uses') end
  end

  -- salt_of: the salt that comes with keep_done "compact"; nil for any other value
  local function salt_of(value)
    return string.match(value, '^compact (%w+)$')
  end

  -- cannot_switch: why a setting cannot be written now, as an error; nil if it can
  function settings.cannot_switch(name, value)
    local salt = salt_of(value)
    if name ~= 'keep_done' or salt and has('compact') then return nil end
    if has('compact') then
      local count = number(call('HGET', key.seen, 'count'), 0)
      if count == 0 and call('EXISTS', named('seen:0')) == 0 then return nil end
      return {err = string.format('COMPACT this queue keeps %.0f done tasks as fingerprints, which no other keep_done can read: keep_done '
        .. 'stays "compact" until the queue is purged; for another keep_done use a new queue', count)}
    end
    if value == 'compact' then return {err = 'COMPACT keep_done "compact" comes with a salt'} end
    if not salt then return nil end
    if not sha1hex or tonumber('fffffffffff', 16) ~= 17592186044415 then
      return {err = 'COMPACT keep_done="compact" needs a server of 64 bits whose scripts have sha1hex'}
    end
    local known = call('ZCARD', key.scheduled)
    for _, set in ipairs({'todos', 'waiting', 'in_progress', 'done', 'failed'}) do known = known + call('SCARD', named(set)) end
    if known == 0 then return nil end
    return {err = string.format('COMPACT keep_done="compact" can be set only while a queue has no tasks, and this queue has %.0f, done ones '
      .. 'counted: set it on a new queue, then bring the tasks there (timeoutq export OLD | timeoutq import NEW); or purge this queue first', known)}
  end

  -- switch_done: begin or end to keep done tasks as fingerprints, on a queue without tasks
  local function switch_done(value)
    local salt, seen = salt_of(value), key.seen
    if salt and not has('compact') then
      settings.use('compact', true)
      call('HSET', seen, 'salt', salt, 'level', 0, 'split', 0, 'count', 0)
    elseif not salt and has('compact') then
      settings.use('compact', false)
      call('UNLINK', seen)
    end
    return salt and 'compact' or value
  end

  -- switch_log: begin, change or end the event log. The value is how many bytes the log keeps and its level, `-` for what stays as it is.
  -- An entry tells of the new level, and of how many tasks the queue has: a log that begins with 0 tasks tells of all
  local function switch_log(value)
    local log = key.events
    local old = call('HGET', key.meta, 'events') or ''
    local most, level = string.match(value, '^(%d+) '), string.match(value, '^%S+ (%l+)$')
    most = most or string.match(old, '^(%d+) ') or '64000000'
    level = level or has('events') and string.match(old, ' (%l+)$') or 'all'
    local was = has('events') and (has('ends') and 'ends' or 'all') or 'off'
    if level == was and (level ~= 'off' or old == '') then return level ~= 'off' and most .. ' ' .. level or nil end
    if level ~= was then
      local known = call('ZCARD', key.scheduled)
      for _, set in ipairs({'todos', 'waiting', 'in_progress', 'done', 'failed'}) do known = known + call('SCARD', named(set)) end
      call('XLEN', log)
      settings.use('events', level ~= 'off')
      settings.use('ends', level == 'ends')
      local before = count_up(key.stats, 'logged', 60) - 60
      call('XADD', log, '*', 'verb', 'configure', 'level', level, 'tasks', known, 'offset', string.format('%.0f', before))
    end
    if level ~= 'off' then return most .. ' ' .. level end
    call('HDEL', key.meta, 'events')
  end

  -- switch: settings that begin or end a capability: gives the value to write, or nil for none, and whether `convert` is to be
  -- called, because what is in the queue already has to follow. Any other setting is written as it is
  function settings.switch(name, value)
    if name == 'durable' then
      if has('durable') ~= (value ~= '0') then settings.use('durable', value ~= '0') end
      if value ~= '0' then return value, false end
      call('HDEL', key.meta, 'durable', 'mark')
      return nil, false
    end
    if name == 'keep_done' then return switch_done(value), false end
    if name == 'events' then return switch_log(value), false end
    if name ~= 'politeness' then return value, false end
    local was = has('politeness') and (setting.politeness or '')
    -- rules that change keep everything where it is; who has just begun, or ended, waits for the conversion
    -- where a foreign hand has deleted the settings of a polite queue, `off` lets its waiting tasks go
    if value == 'off' and not was and call('EXISTS', key.waiting) == 0 then return nil, false end
    -- a conversion that has not ended goes on where it is
    if was == value then return nil, call('HEXISTS', key.meta, 'converting') == 1 end
    -- if visits have ended before, nobody knows when: the hosts rest as if it had been just now
    local counts = call('HMGET', key.stats, 'claimed', 'pulled')
    local ended = number(counts[1], 0) + number(counts[2], 0) > call('SCARD', key.in_progress)
    if ended and value ~= 'off' and (not was or string.sub(was, -3) == 'off') then
      call('HSET', key.resting, '', now)
    end
    call('HSET', key.meta, 'converting', 'p0')
    if not was then settings.use('politeness', true) end
    return value == 'off' and '0 1000000 off' or value, true
  end
end
