-- configure: write settings that all clients of the queue share; pause and resume are such settings.
-- ARGS  1 call id   2 age of the call, ms   3.. (name, value) *: a name that ends in `?` is written only where the
--       queue has no such setting: of two clients that write it at the same moment, the first counts.
--       keep_done "compact" comes with a salt, as `compact SALT`
-- Reply what to do next, number: 2 when `convert` is to be called, because the tasks in the queue have to follow the
--       settings; else 1
verb('configure', {flags = {'allow-oom'}}, function()
  local reply, names = 1, {}
  for i = 3, #args, 2 do
    local once = string.match(args[i], '^(.*)%?$')
    names[i] = not (once and call('HEXISTS', key.meta, once) == 1) and (once or args[i])
    local refused = names[i] and settings.cannot_switch(names[i], args[i + 1])
    if refused then return refused end
  end
  for i = 3, #args, 2 do
    local name, value, convert = names[i], nil, nil
    if name then value, convert = settings.switch(name, args[i + 1]) end
    if convert then reply = 2 end
    if value then call('HSET', key.meta, name, value) end
    if name == 'paused' and value == '0' then wake.ring() end
  end
  settings.exists()
  calls.mark()
  return reply
end)
