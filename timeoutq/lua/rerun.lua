-- rerun: a task in progress that a put wants to run once more is marked; when its run ends, the task is ready again. A
-- queue uses this as soon as a task has been marked
-- rerun  of each marked task: the priority of its next run, a blank, then 1 and its next payload, or 0 to keep the
--        payload
do
  -- mark: note what the next run of a task in progress has; no payload: it keeps its own
  function rerun.mark(id, next_priority, body)
    settings.use('rerun', true)
    call('HSET', key.rerun, id, next_priority .. ' ' .. (body and '1' .. body or '0'))
  end

  -- read: the priority and the payload that a mark says, nil for no payload
  function rerun.read(mark)
    local next_priority, with, body = string.match(mark or '', '^(%-?%d+) ([01])(.*)$')
    return next_priority, with == '1' and body or nil
  end

  -- marks_of: the marks of these tasks, each at the place of its task
  function rerun.marks_of(ids)
    return has('rerun') and #ids > 0 and call('HMGET', key.rerun, unpack(ids)) or {}
  end

  -- unmark: these tasks are marked no longer
  function rerun.unmark(ids)
    if has('rerun') then call('HDEL', key.rerun, unpack(ids)) end
  end

  -- renew: give each marked task the priority and the payload of its mark, and remove the mark
  function rerun.renew(ids, marks)
    marks = marks or rerun.marks_of(ids)
    local marked = chosen(ids, marks)
    for i = 1, #ids do
      local next_priority, body = rerun.read(marks[i])
      if body then call('HSET', key.payload, ids[i], body) end
      if next_priority and has('priority') then call('HSET', key.priorities, ids[i], next_priority) end
    end
    some('HDEL', key.rerun, marked)
  end

  -- run_again: the run of ids[i] where which[i] has ended. A marked task is ready again, with a clean record:
  -- which[i] is false then, over[i] true. Gives the tasks that are ready again, and their hosts
  function rerun.run_again(ids, which, over)
    if not has('rerun') then return none, none end
    local marks, moved, moved_names = rerun.marks_of(ids), {}, {}
    for i = 1, #ids do marks[i] = which[i] and marks[i] end
    local anew = chosen(ids, marks)
    if #anew == 0 then return moved, moved_names end
    local names, n = ready.hosts_of(anew), 0
    rerun.renew(ids, marks)
    failures.clear(anew)
    for i = 1, #ids do
      if marks[i] then
        n, which[i] = n + 1, false
        if call('SMOVE', key.in_progress, ready.entry(names[n]), ids[i]) == 1 then
          moved[#moved + 1], moved_names[#moved + 1], over[i] = ids[i], names[n], true
        end
      end
    end
    if #moved > 0 then count_up(key.stats, 'reruns', #moved) end
    return moved, moved_names
  end

  -- is_among: is this one of the tasks with rerun, which stand at the places `at`, {} for all places?
  function rerun.is_among(id, ids, at)
    for n = 1, #at > 0 and #at or #ids do
      if ids[#at > 0 and tonumber(at[n]) or n] == id then return true end
    end
    return false
  end

  -- newest_of: what a put does to the tasks with rerun, which stand at the places `at`, {} for all places: 'marked':
  -- the task is in progress, and runs once more; 'up': it waits for a claim, and gets the payload; 'back': it is done,
  -- and comes back. Of such an id the last of these places counts, also for priorities. `chosen` and `changes` are what
  -- the priorities of the put say: they lose what they say of these ids. Gives, for each id, the place that counts, and
  -- what the put does to the tasks with rerun
  function rerun.newest_of(ids, where, at, chosen, changes)
    local newest, places, anew = {}, {}, {}
    local what = {p = 'marked', d = 'back', t = 'up', w = 'up', s = 'up'}
    for n = 1, #at > 0 and #at or #ids do
      local i = #at > 0 and tonumber(at[n]) or n
      newest[ids[i]] = i
    end
    for i = 1, #ids do
      local id = ids[i]
      places[id] = newest[id] or chosen[id] or places[id] or i
      if newest[id] then changes[i] = nil end
      if newest[id] == i then anew[i] = what[where[i]] end
    end
    return places, anew
  end

  -- put: write the marks, payloads and priorities that newest_of() has found. Done tasks come back in add_some()
  function rerun.put(ids, where, changes, bodies, priorities)
    local raised, bodies_of = {}, {}
    for i = 1, #ids do
      local mark = changes[i] == 'marked' and call('HGET', key.rerun, ids[i])
      local wanted, last_body = rerun.read(mark)
      local body = bodies[i] or last_body
      if changes[i] and priorities and priorities[i] then
        raised[i], bodies_of[i] = changes[i], body
      elseif changes[i] == 'marked' then
        rerun.mark(ids[i], wanted or has('priority') and call('HGET', key.priorities, ids[i]) or '0', body)
      elseif changes[i] == 'up' and body then
        call('HSET', key.payload, ids[i], body)
      end
    end
    if next(raised) then
      priority.raise(ids, where, priorities, raised, call('HMGET', key.priorities, unpack(ids)), bodies_of)
    end
  end
end
