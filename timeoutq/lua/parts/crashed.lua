-- crashed: what becomes of tasks whose leases ended without an answer
-- PARTS drop log ready done rerun cancel
-- nowhere: is a task, which a foreign hand has taken out of in_progress, in no other state?
local function nowhere(id)
  for _, set in ipairs({todos, failed, key('waiting')}) do
    if redis.call('SISMEMBER', set, id) == 1 then return false end
  end
  return not is_done(id) and not redis.call('ZSCORE', key('scheduled'), id)
end

-- crash: leases on `ids` ran out (`was` their owners). Back to todos, or to failed for those that did it too often, and for those that
-- were cancelled; but a task that is to run once more never crashed too often. Returns how many went back or were cancelled, how many
-- went to failed because of it, and the ids of the latter.
local function crash(ids, was, reason)
  local counts = redis.call('HMGET', crashes, unpack(ids))
  local names = hosts_of(ids)
  local again, again_names = {}, {}
  local gone, back, given_up, spent = {}, 0, 0, {}
  local fields, lines = {}, {}
  local by, stopped, whose = cancels_of and cancels_of(ids) or {}, {}, {}
  local held, lost = redis.call('SMISMEMBER', in_progress, unpack(ids)), {}
  for i = 1, #ids do lost[i] = held[i] == 0 and nowhere(ids[i]) end
  local marks, last, anew = marks_of and marks_of(ids) or {}, {}, {}
  sound()
  local function told(i, count)
    return reason .. ' (crash ' .. count .. ' of ' .. max_crashes .. '; it was leased to ' .. (was[i] or '?') .. ')'
  end
  for i = 1, #ids do
    last[i] = marks[i] and number(counts[i], 0) + 1 >= max_crashes
    if last[i] then log_error(ids[i], told(i, number(counts[i], 0) + 1)) end
  end
  if renew then
    run_again(ids, last, anew)
    renew(ids, marks_of(ids)) -- the next run has what was put meanwhile
  end
  for i = 1, #ids do
    local id = ids[i]
    local count = number(counts[i], 0) + 1
    gone[#gone + 1] = id
    if anew[i] then
      back = back + 1
      again[back], again_names[back] = id, names[i]
    end
    local into = count >= max_crashes and failed or by[i] and failed or entry(names[i])
    local moved = redis.call('SMOVE', in_progress, into, id)
    if moved == 0 and lost[i] then moved = redis.call('SADD', into, id) end
    if moved == 1 then
      fields[#fields + 1] = id
      fields[#fields + 1] = count
      local line = told(i, count)
      if by[i] then
        stopped[#stopped + 1], whose[#whose + 1] = id, by[i]
      elseif count >= max_crashes then
        given_up = given_up + 1
        spent[given_up] = id
        line = 'gave up: ' .. line
      else
        back = back + 1
        again[back], again_names[back] = id, names[i]
      end
      lines[#lines + 1] = not by[i] and {id, line} or nil
    end
  end
  -- before the hosts have their turn: a task of a banned host fails there, with the ban as its error
  if #fields > 0 then
    redis.call('HSET', crashes, unpack(fields))
    for i = 1, #lines do
      log_error(lines[i][1], lines[i][2])
    end
  end
  drop(gone)
  depart(gone, names, 0, 1)
  arrive(again, again_names)
  turn()
  if #stopped > 0 then rarely('cancelled')(stopped, whose) end
  if given_up > 0 then
    rarely('note_kinds')(spent)
    count_up(stats, 'gave_up', given_up)
    if tell_ended then tell_ended(spent) end
  end
  return back + #stopped, given_up, spent
end
