-- cancel: a task in progress that somebody cancels is marked, and its worker stops the handler. What ends the run first counts: an
-- ack, or a failure for good, ends the task as ever; if the task would be ready again, it goes to failed instead. A put that has the
-- task run once more (`rerun`) takes the cancel back. A queue uses this while a task is marked
-- cancels  of each marked task: who cancels it

-- cancels_of: who cancels these tasks, each at the place of its task; nil or false for a task that nobody cancels
function cancel.by(ids)
  if not has('cancel') then return {} end
  local by, marks = call('HMGET', key.cancels, unpack(ids)), rerun.marks_of(ids)
  for i = 1, #ids do by[i] = not marks[i] and by[i] end
  return by
end

-- uncancel: the leases on these tasks have ended: the tasks are marked no longer
function cancel.forget(ids)
  if not has('cancel') or call('HDEL', key.cancels, unpack(ids)) == 0 then return end
  if call('EXISTS', key.cancels) == 0 then settings.use('cancel', false) end
end

-- cancelled: these tasks go to failed, because by[i] has cancelled ids[i]: note this as their error, and tell who waits for them
function cancel.fail(ids, by)
  for i = 1, #ids do failures.keep(ids[i], 'cancelled by ' .. by[i]) end
  kinds.note(ids)
  count_up(key.stats, 'cancelled', #ids)
  results.tell_ended(ids)
end

-- stop: the runs of some tasks have ended, and the tasks would be ready again: which[i] says so of ids[i]. Those that are cancelled go
-- to failed, and which[i] becomes false, over[i] true. Gives these tasks
function cancel.stop(ids, which, over)
  local by, gone, whose = cancel.by(ids), {}, {}
  for i = 1, #ids do
    if by[i] and which[i] and call('SISMEMBER', key.in_progress, ids[i]) == 1 then
      gone[#gone + 1], whose[#whose + 1] = ids[i], by[i]
      which[i], over[i], by[i] = false, true, false
    end
  end
  if #gone == 0 then return gone end
  cancel.fail(gone, whose)
  for i = 1, #gone do call('SMOVE', key.in_progress, key.failed, gone[i]) end
  return gone
end
