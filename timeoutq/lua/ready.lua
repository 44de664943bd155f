-- ready: the door through which tasks become ready, and by which they leave again. On most queues, a task that becomes ready
-- enters todos at once. A queue may use turns instead: then the room that gives the turns has functions of its own behind the
-- same names. Which functions serve is chosen once, when the script begins. A verb calls them by these names and does not know
-- which they are: arrive() for tasks that become ready, depart() for tasks that leave todos or in_progress, then turn() once.
-- waiting   the set of the tasks that wait for a turn; nil on a queue without turns
-- hosts_of  the hosts of tasks, each at the place of its task in `ids`; a task without a host does not wait for a turn
-- entry     the set that a task of this host enters when it becomes ready: todos or waiting
-- ready     tasks that are in no state become ready; gives how many tasks they are
-- arrive    tasks become ready that have been moved into their entries already
-- depart    tasks have left todos or in_progress; each counts as `visited` visits and `broken` failures of its host
-- block     no more visits of a host before a time
-- withdraw  tasks have been taken out of the queue; `where` has the letters of the states that held them
-- turn      give their turns to the hosts that this call has met
-- pass_on   depart() and turn() in one, for visits that did not fail
-- rest      visits are about to end, of each ids[i] with which[i] and held[i] == 1: for a verb by which tasks become ready before depart()
do

  -- regroup: keep the host with which tasks were put, on every queue, for turns that begin later; ungroup: forget this host
  function groups.keep(ids, group)
    if not group or group == '' then return end
    local rows = {}
    for i = 1, #ids do rows[2 * i - 1], rows[2 * i] = ids[i], group end
    call('HSET', key.groups, unpack(rows))
  end

  function groups.forget(ids)
    call('HDEL', key.groups, unpack(ids))
  end

  -- enter: tasks that are in no state enter todos; gives how many tasks they are. One that is there already stays, if it `may_be_there`
  function plain.enter(ids, group, may_be_there)
    groups.keep(ids, group)
    local count = quiet('SADD', key.todos, unpack(ids))
    if may_be_there and count == 0 then return 0 end
    if logging then events.moved(ids, nil, key.todos, count < #ids) end
    if call('SCARD', key.todos) == count then
      call('HSET', key.stats, 'todos_since', now)
    end
    wake.ring()
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
