-- rerun: a task in progress that a put wants to run once more is marked; when its run ends, the task is ready again. A queue uses
-- this as soon as a task has been marked
-- rerun  of each marked task: the priority of its next run, a blank, then 1 and its next payload, or 0 to keep the payload
-- PARTS log ready
local marks_of, renew, run_again, unmark

-- take_marks: give each of these tasks the priority and the payload of its mark, and remove the mark
local function take_marks(ids, marks)
  even_when_full()
  for i = 1, #ids do
    local priority, with, body = string.match(marks[i], '^(%-?%d+) ([01])(.*)$')
    if priority then
      if with == '1' then redis.call('HSET', key('payload'), ids[i], body) end
      if has('priority') then redis.call('HSET', key('priorities'), ids[i], priority) end
    end
  end
  redis.call('HDEL', key('rerun'), unpack(ids))
end

-- run_marked: run_again() for tasks of which some may have been marked by this very script; `marks` are read already, or nil
local function run_marked(ids, which, over, marks)
  local anew, kept = {}, {}
  marks = marks or redis.call('HMGET', key('rerun'), unpack(ids))
  for i = 1, #ids do
    if marks[i] and which[i] then anew[#anew + 1], kept[#kept + 1] = ids[i], marks[i] end
  end
  if #anew == 0 then return anew, anew end
  local names, moved, moved_names = hosts_of(anew), {}, {}
  take_marks(anew, kept)
  clear(anew)
  local n = 0
  for i = 1, #ids do
    if marks[i] and which[i] then
      n, which[i] = n + 1, false
      if redis.call('SMOVE', in_progress, entry(names[n]), ids[i]) == 1 then
        moved[#moved + 1], moved_names[#moved + 1], over[i] = ids[i], names[n], true
      end
    end
  end
  if #moved > 0 then count_up(stats, 'reruns', #moved) end
  return moved, moved_names
end

if uses then
  -- marks_of: the marks of these tasks, each at the place of its task
  function marks_of(ids)
    return has('rerun') and redis.call('HMGET', key('rerun'), unpack(ids)) or {}
  end

  -- renew: give each marked task the priority and the payload of its mark, and remove the mark
  function renew(ids, marks)
    local some, kept = {}, {}
    for i = 1, #ids do
      if marks[i] then some[#some + 1], kept[#kept + 1] = ids[i], marks[i] end
    end
    if #some > 0 then rarely('take_marks')(some, kept) end
  end

  -- run_again: which[i] says that the run of ids[i] has just ended. If that task is marked, make it ready again, with a clean
  -- record, and set which[i] to false and over[i] to true. Gives the tasks that are ready again, and their hosts
  function run_again(ids, which, over)
    local marks = marks_of(ids)
    for i = 1, #ids do
      if marks[i] and which[i] then return rarely('run_marked')(ids, which, over, marks) end
    end
    return {}, {}
  end

  -- unmark: these tasks are marked no longer
  function unmark(ids)
    if has('rerun') then redis.call('HDEL', key('rerun'), unpack(ids)) end
  end
end
