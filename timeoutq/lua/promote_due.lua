-- promote_due: scheduled tasks whose time has come become ready, and hosts whose turn it is hand over theirs.
-- KEYS  todos scheduled meta stats bell alarm
-- PARTS open wake log hostname polite
-- SOUND stats alarm todos
-- ARGV  1 call id   2 age of the call, ms   3 at most
-- Reply {now ms, promoted, 1 if there may be more}
local n, handed, more = tonumber(ARGV[3]), 0, false
local ids = redis.call('ZRANGEBYSCORE', scheduled, '-inf', now, 'LIMIT', 0, n)
if #ids > 0 then
  sound()
  even_when_full()
  if polite then
    enter(ids)
  else
    redis.call('SADD', todos, unpack(ids))
    if redis.call('SCARD', todos) == #ids then
      redis.call('HSET', stats, 'todos_since', now)
    end
    ring()
  end
  redis.call('ZREM', scheduled, unpack(ids))
  count_up(stats, 'promoted', #ids)
end
if polite then
  local hosts = prefix .. 'hosts'
  local names = redis.call('ZRANGEBYSCORE', hosts, '-inf', now, 'LIMIT', 0, n)
  if #names > 0 then
    even_when_full()
    load_hosts(names)
    handed, more = turn()
    more = more or #names == n
  end
end
return {now, #ids + handed, (#ids == n or more) and 1 or 0}
