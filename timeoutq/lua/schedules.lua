-- schedules: what is known of a schedule, besides its definition
-- schedules  of each schedule its definition, JSON, which only clients read
-- ticked     of each schedule its record: words with blanks between them
-- ticks      of each schedule that runs, the next tick, ms; the record says so, too, and counts
-- The words of a record: 1 state: r runs, p paused by a person, u paused because no code declares it, e ended   2
-- source: c code, s set 3 the call that wrote the definition last   4 a digest of the definition   5 next tick, ms, 0
-- for none   6 last tick, ms, 0 for none 7 ticks put   8 ticks skipped, because their task was there   9 ticks
-- missed   10 when code declared it last, ms   11 the version of the data of time zones that gave the next tick, - for
-- none, or missing
do
  local words_of = {'state', 'source', 'rev', 'digest', 'next', 'last', 'put', 'skipped', 'missed', 'renewed', 'zones'}
  schedules.UNDECLARED = 3600000 -- ms

  -- read: the record that a text holds; nil for none
  function schedules.read(text)
    if not text then return nil end
    local one, n = {}, 0
    for word in string.gmatch(text, '%S+') do
      n = n + 1
      if words_of[n] then one[words_of[n]] = n > 4 and n < 11 and tonumber(word) or word end
    end
    return n >= 10 and one or nil
  end

  function schedules.get(name)
    return schedules.read(call('HGET', key.ticked, name))
  end

  function schedules.write(name, one)
    local words = {}
    for i, word in ipairs(words_of) do words[i] = i > 4 and i < 11 and whole(one[word]) or one[word] or '-' end
    call('HSET', key.ticked, name, table.concat(words, ' '))
    if one.state == 'r' and one.next > 0 then
      call('ZADD', key.ticks, one.next, name)
    else
      call('ZREM', key.ticks, name)
    end
  end
end
