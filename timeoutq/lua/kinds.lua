-- kinds: the failed tasks of a queue, grouped by what their last errors have in common: the first line, without what
-- differs from task to task. `kind_text` says how; whatever changes it changes it in tests/rig/kinds.py, too
-- kinds    of each kind three fields: = and its text: its number, 1 to 2000; # and its number: its text; + and its
--          number: how many tasks it has; and `next`, the number that was given last. 1000 kinds at most; the tasks of
--          all further ones have the number 0
-- kind_of  of each failed task: the number of its kind * 2^42 + when it was given up, ms
do
  kinds.SPAN, kinds.MOST = 4398046511104, 1000
  local CODES = {http = true, status = true, code = true, errno = true}

  -- kind_text: the kind of an error, 200 bytes at most, of its time, a blank, and the error. Also gives whether another
  -- task with this error has the same kind
  local function kind_text(id, line)
    local text = string.sub(string.match(line or '', '^%d+ ([^\r\n]*)') or '', 1, 300)
    if string.find(text, '^cancelled by ') then return 'cancelled', true end
    if string.find(text, '^expired: ') then return 'expired', true end
    local cut = string.find(text, '; it was leased to ', 1, true)
    if cut then text = string.sub(text, 1, cut - 1) .. ')' end
    if string.find(text, '^gave up: ') then
      text = string.gsub(text, '^gave up: host %S+ is banned', 'gave up: <host> is banned')
      text = string.gsub(text, ' of batch %S+ are not ', ' of a batch are not ')
    end
    if string.find(text, '://', 1, true) then text = string.gsub(text, '%f[%w]%w+://[^%s\'"<>()]+', '<url>') end
    local from, to = nil, 0
    if #id >= 8 then from, to = string.find(text, id, 1, true) end
    if from then text = string.sub(text, 1, from - 1) .. '<id>' .. string.sub(text, to + 1) end
    if string.find(text, '%d') then
      text = string.gsub(text, '%f[%w]%x[%x-][%x-][%x-][%x-][%x-][%x-][%x-]*%x%f[%W]', function(word)
        return string.find(word, '%d') and '#' or nil
      end)
      -- a code says what has failed: HTTP 404, status 503, Errno 111, exit code 1
      text = string.gsub(text, '()(%d+)', function(at, digits)
        local before = string.sub(text, math.max(1, at - 8), at - 1)
        return not (#digits <= 3 and CODES[string.lower(string.match(before, '(%a*)[ =:/]?$'))]) and '#' or nil
      end)
    end
    if #text > 200 then
      local last = 200
      -- a character of several bytes is not cut
      while last > 190 and string.find(string.sub(text, last + 1, last + 1), '[\128-\191]') do last = last - 1 end
      text = string.sub(text, 1, last)
    end
    return text == '' and 'no error text' or text, not from
  end

  -- kind_number: the number of a kind; one that is new gets a number, or 0 if there are a thousand
  local function kind_number(text)
    local known = number(call('HGET', key.kinds, '=' .. text))
    if known then return known end
    if call('HLEN', key.kinds) > 3 * kinds.MOST then return 0 end
    local at = number(call('HGET', key.kinds, 'next'), 0)
    repeat
      at = at % (2 * kinds.MOST) + 1
    until call('HEXISTS', key.kinds, '#' .. at) == 0
    call('HSET', key.kinds, 'next', at, '=' .. text, at, '#' .. at, text)
    return at
  end

  -- leave: these tasks leave failed; a kind without tasks is forgotten
  function kinds.leave(ids)
    if #ids == 0 or call('EXISTS', key.kind_of) == 0 then return end
    local scores, gone, seen = call('ZMSCORE', key.kind_of, unpack(ids)), {}, {}
    call('ZREM', key.kind_of, unpack(ids))
    if call('EXISTS', key.kind_of) == 0 then return call('DEL', key.kinds) end
    for i = 1, #ids do
      local at = scores[i] and not seen[ids[i]] and math.floor(scores[i] / kinds.SPAN)
      if at then gone[at], seen[ids[i]] = (gone[at] or 0) + 1, true end
    end
    for at, count in pairs(gone) do
      if count_up(key.kinds, '+' .. at, -count) <= 0 then
        local text = call('HGET', key.kinds, '#' .. at)
        call('HDEL', key.kinds, '#' .. at, '+' .. at)
        if text then call('HDEL', key.kinds, '=' .. text) end
      end
    end
  end

  -- note: these tasks are in failed, or go there in this call, and their errors are written: group them
  function kinds.note(ids)
    if #ids == 0 then return end
    kinds.leave(ids) -- a task that somebody took out of failed by hand is in a kind still
    local lines, rows, numbers, texts, counts = call('HMGET', key.errors, unpack(ids)), {}, {}, {}, {}
    for i = 1, #ids do
      local line = lines[i] or ''
      local text, shared = texts[line], nil
      if not text then
        text, shared = kind_text(ids[i], line)
        if shared and #line < 300 then texts[line] = text end
      end
      local kind = numbers[text] or kind_number(text)
      numbers[text], counts[kind] = kind, (counts[kind] or 0) + 1
      local at = math.min(number(string.match(line, '^%d+'), now), now, kinds.SPAN - 1)
      rows[#rows + 1], rows[#rows + 2] = whole(kind * kinds.SPAN + at), ids[i]
    end
    call('ZADD', key.kind_of, unpack(rows))
    for kind, count in pairs(counts) do count_up(key.kinds, '+' .. kind, count) end
  end
end
