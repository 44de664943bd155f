-- cancel: a task in progress that somebody cancels is marked, and its worker stops the handler. What ends the run first
-- counts: an ack, or a failure for good, ends the task as ever; if the task would be ready again, it goes to failed
-- instead. A put that has the task run once more (`rerun`) takes the cancel back. A queue uses this while a task is
-- marked
-- cancels  of each marked task: who cancels it

-- marks_of: who has marked these tasks; by: who cancels them, false for a task that is to run once more
function cancel.marks_of(ids)
  return has('cancel') and call('HMGET', key.cancels, unpack(ids)) or none
end

function cancel.by(ids)
  if not has('cancel') then return {} end
  local by = cancel.marks_of(ids)
  local marks = next(by) and rerun.marks_of(ids)
  for i = 1, #by do by[i] = not marks[i] and by[i] end
  return by
end

-- forget: the leases on these tasks have ended: the tasks are marked no longer
function cancel.forget(ids)
  if not has('cancel') or call('HDEL', key.cancels, unpack(ids)) == 0 then return end
  if call('EXISTS', key.cancels) == 0 then settings.use('cancel', false) end
end

-- fail: these tasks go to failed, because by[i] has cancelled ids[i]; those that wait for them are told. `said` has what
-- their workers say of the attempts, as far as they do
function cancel.fail(ids, by, said)
  if #ids == 0 then return end
  for i = 1, #ids do
    local message = 'cancelled by ' .. by[i]
    local words = said and said[i]
    if words or has('records') then results.note(ids[i], words, 'c', call('HGET', key.owners, ids[i]), message) end
    failures.keep(ids[i], message)
  end
  if has('records') then results.list(ids) end
  kinds.note(ids)
  count_up(key.stats, 'cancelled', #ids)
  results.tell_ended(ids)
end

-- stop: tasks that would be ready again (which[i]) and are cancelled go to failed: which[i] is false then, over[i] true
function cancel.stop(ids, which, over)
  local by, gone, whose, seen = cancel.by(ids), {}, {}, {}
  for i = 1, #by do
    local id = ids[i]
    if by[i] and which[i] then
      which[i] = false
      if not seen[id] and call('SISMEMBER', key.in_progress, id) == 1 then
        gone[#gone + 1], whose[#whose + 1], seen[id], over[i] = id, by[i], true, true
      end
    end
  end
  cancel.fail(gone, whose)
  for i = 1, #gone do call('SMOVE', key.in_progress, key.failed, gone[i]) end
  return gone
end
