-- ready: the door through which tasks become ready, and by which they leave again. On most queues, a task that becomes ready
-- enters todos at once. A queue may use turns instead: then the room that gives the turns has functions of its own behind the
-- same names. Which functions serve is chosen once, when the script begins. A verb calls them by these names and does not know
-- which they are: arrive() for tasks that become ready, depart() for tasks that leave todos or in_progress, then turn() once.
-- PARTS events wake results
-- ROOMS polite
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
local polite = has('politeness')
local waiting, hosts_of, entry, ready, arrive, depart, block, withdraw, turn, pass_on, rest

-- regroup: keep the host with which tasks were put, on every queue, for turns that begin later; ungroup: forget this host
local function regroup(ids, group)
  if not group or group == '' then return end
  local pairs = {}
  for i = 1, #ids do pairs[2 * i - 1], pairs[2 * i] = ids[i], group end
  redis.call('HSET', key('groups'), unpack(pairs))
end

local function ungroup(ids)
  redis.call('HDEL', key('groups'), unpack(ids))
end

-- at_once: tasks that are in no state enter todos; gives how many tasks they are
local function at_once(ids, group)
  regroup(ids, group)
  local count = quiet('SADD', todos, unpack(ids))
  if moved then moved(ids, nil, todos, count < #ids) end
  if redis.call('SCARD', todos) == count then
    redis.call('HSET', stats, 'todos_since', now)
  end
  ring()
  return count
end

if not polite then
  local nobody = {}
  local function nothing() end
  ready, depart, block, withdraw, turn, pass_on, rest = at_once, nothing, nothing, nothing, nothing, nothing, nothing

  function hosts_of() return nobody end
  function entry() return todos end

  function arrive(ids)
    if #ids > 0 then ring() end
  end
end
