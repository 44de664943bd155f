-- ready: how tasks become ready, and leave again. On most queues, a task that becomes ready enters todos at once:
-- `plain`. On a polite queue it waits for its host's turn: `hosts` has functions of the same names. Verbs call `ready`,
-- which is one of the two: arrive() for tasks that become ready, depart() for tasks that leave todos or in_progress,
-- then turn() once.
-- hosts_of  the hosts of tasks, each at the place of its task in `ids`; a task without a host does not wait for a turn
-- entry     the set that a task of this host enters when it becomes ready: todos or waiting
-- enter     tasks that are in no state become ready; gives how many tasks they are
-- arrive    tasks become ready that have been moved into their entries already
-- depart    tasks have left todos or in_progress; each counts as `visited` visits and `broken` failures of its host
-- block     no more visits of a host before a time
-- withdraw  tasks have been taken out of the queue; `where` has the letters of the states that held them
-- turn      give their turns to the hosts that this call has met
-- pass_on   depart() and turn() in one, for visits that did not fail
-- rest      visits are about to end, of each ids[i] where which[i]: for a verb by which tasks become ready before
--           depart()
do
  -- groups: the hosts with which tasks were put, on every queue, for turns that begin later
  function groups.keep(ids, group)
    if group and group ~= '' then some('HSET', key.groups, alike(ids, group, true)) end
  end

  function groups.forget(ids) call('HDEL', key.groups, unpack(ids)) end

  -- note_first: so many tasks have entered todos: if there was none, note since when there are some
  function plain.note_first(count)
    if call('SCARD', key.todos) == count then call('HSET', key.stats, 'todos_since', now) end
  end

  -- enter: one that is in todos already stays, if it `may_be_there`
  function plain.enter(ids, group, may_be_there)
    groups.keep(ids, group)
    local there = call('EXISTS', key.todos, key.bell, key.bell) -- a name that is given twice counts twice
    local count = quiet('SADD', key.todos, unpack(ids))
    if may_be_there and count == 0 then return 0 end
    if logging then events.moved(ids, nil, key.todos, count < #ids) end
    if there % 2 == 0 then call('HSET', key.stats, 'todos_since', now) end
    if there < 2 then wake.ring(true) end
    return count
  end

  local nobody = {}
  local function nothing() end
  plain.depart, plain.block, plain.withdraw, plain.turn, plain.pass_on, plain.rest = nothing, nothing, nothing, nothing, nothing, nothing

  function plain.hosts_of() return nobody end
  function plain.entry() return key.todos end

  function plain.arrive(ids)
    if #ids > 0 then wake.ring() end
  end
end
