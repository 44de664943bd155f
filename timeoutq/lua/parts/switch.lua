-- switch: begin and end the capabilities of a queue
-- use: from now on, the queue uses a capability, or no longer does; kept in `uses` of meta, words with blanks between them
local function use(capability, on)
  local words = {}
  for word in string.gmatch(uses or '', '%S+') do
    if word ~= capability then words[#words + 1] = word end
  end
  if on then words[#words + 1] = capability end
  uses = #words > 0 and table.concat(words, ' ') or false
  redis.call('HDEL', meta, 'uses') -- also makes a full server allow what follows, as even_when_full() does
  if uses then redis.call('HSET', meta, 'uses', uses) end
end

-- switch: settings that begin or end a capability: gives the value to write, or nil for none, and whether `convert` is to be
-- called, because what is in the queue already has to follow. Any other setting is written as it is
local function switch(name, value)
  if name == 'durable' then
    if has('durable') ~= (value ~= '0') then use('durable', value ~= '0') end
    if value ~= '0' then return value, false end
    redis.call('HDEL', meta, 'durable', 'mark')
    return nil, false
  end
  if name ~= 'politeness' then return value, false end
  local was = has('politeness') and (politeness or '')
  -- rules that change keep everything where it is; who has just begun, or ended, waits for the conversion
  -- where a foreign hand has deleted the settings of a polite queue, `off` lets its waiting tasks go
  if value == 'off' and not was and redis.call('EXISTS', key('waiting')) == 0 then return nil, false end
  -- a conversion that has not ended goes on where it is
  if was == value then return nil, redis.call('HEXISTS', meta, 'converting') == 1 end
  if not was then use('politeness', true) end
  redis.call('HDEL', meta, 'converting')
  redis.call('HSET', meta, 'converting', 'p0')
  return value == 'off' and '0 1000000 off' or value, true
end
