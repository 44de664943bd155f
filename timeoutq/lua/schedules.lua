-- ticking: what is known of a schedule, besides its definition
-- schedules  of each schedule its definition, JSON, which only clients read
-- ticked     of each schedule its record: words with blanks between them
-- ticks      of each schedule that runs, the next tick, ms; the record says so, too, and counts
-- The words of a record: 1 state: r runs, p paused by a person, u paused because no code declares it, e ended   2 source: c code, s set
-- 3 the call that wrote the definition last   4 a digest of the definition   5 next tick, ms, 0 for none   6 last tick, ms, 0 for none
-- 7 ticks put   8 ticks skipped, because their task was there   9 ticks missed   10 when code declared it last, ms
do
  local words_of = {'state', 'source', 'rev', 'digest', 'next', 'last', 'put', 'skipped', 'missed', 'renewed'}
  schedules.UNDECLARED = 3600000 -- ms

  -- read_ticked: the record that a text holds; nil if it cannot be read
  function schedules.read(text)
    if not text then return nil end
    local one, n = {}, 0
    for word in string.gmatch(text, '%S+') do
      n = n + 1
      if not words_of[n] then return nil end
      one[words_of[n]] = n > 4 and number(word) or n <= 4 and word or nil
    end
    for i = 1, #words_of do
      if not one[words_of[i]] then return nil end
    end
    return string.find(one.state, '^[rpue]$') and string.find(one.source, '^[cs]$') and one or nil
  end

  function schedules.write(name, one)
    local words = {}
    for i = 1, #words_of do
      local word = one[words_of[i]]
      words[i] = type(word) == 'number' and string.format('%.0f', word) or word
    end
    call('HSET', key.ticked, name, table.concat(words, ' '))
    if one.state == 'r' and one.next > 0 then
      call('ZADD', key.ticks, one.next, name)
    else
      call('ZREM', key.ticks, name)
    end
  end

  -- next_tick: when the next tick of all is due, ms; nil on a queue without schedules
  function schedules.next()
    if not has('schedules') then return nil end
    return moment(call('ZRANGE', key.ticks, 0, 0, 'WITHSCORES')[2])
  end
end
