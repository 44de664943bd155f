-- release: give leases back without blame, to todos at once or to scheduled after a delay.
-- KEYS  todos in_progress scheduled leases owners lock runtime meta stats bell alarm calls
-- PARTS open items drop calls replay wake log hostname polite
-- SOUND stats leases calls alarm todos scheduled; runtime
-- ARGV  1 call id   2 age of the call, ms   3 delay, ms   4 block the hosts for, ms, or 0
--       5.. count, runs of (token, length, id * length)
-- Reply letters, one a lease: O released; R this very call was carried out before; L is not this token's
local call_id, delay = ARGV[1], tonumber(ARGV[3])
local ids, tokens = read_leases(5)
local names = polite and hosts_of(ids)
local ended_names = {}
local yes, codes, ended, lost, dues = mine(ids, tokens), {}, {}, 0, {}
sound()
if delay > 0 then
  -- the time is written before the lease ends: a script that is refused half-way then loses nothing
  local held = redis.call('SMISMEMBER', in_progress, unpack(ids))
  for i = 1, #ids do
    if yes[i] and held[i] == 1 then dues[#dues + 1], dues[#dues + 2] = now + delay, ids[i] end
  end
  if #dues > 0 then
    redis.call('SREM', in_progress, '') -- goes first: a full server allows it, and all that follows it
    redis.call('ZADD', scheduled, unpack(dues))
    rouse(now + delay)
  end
end
for i = 1, #ids do
  codes[i] = 'L'
  if yes[i] then
    local moved
    if delay > 0 then
      moved = redis.call('SREM', in_progress, ids[i])
    else
      moved = redis.call('SMOVE', in_progress, names and names[i] and waiting or todos, ids[i])
    end
    if moved == 1 then
      codes[i] = 'O'
      ended[#ended + 1] = ids[i]
      if names then ended_names[#ended] = names[i] end
    end
  end
  if codes[i] == 'L' then lost = lost + 1 end
end
if #ended > 0 then
  drop(ended)
  redis.call('HINCRBY', stats, 'released', #ended)
  if names then
    depart(ended, ended_names, 0, 0)
    if delay == 0 then arrive(ended, ended_names) end
    if tonumber(ARGV[4]) > 0 then
      for i = 1, #ended do
        if ended_names[i] then block(ended_names[i], now + tonumber(ARGV[4]), string.match(tokens[1], '^[^#]*')) end
      end
    end
    turn()
  end
  if delay == 0 then ring() end
end
local letters = judge(call_id, codes, lost)
if #ended > 0 then remember(call_id, codes, lost) end
return letters
