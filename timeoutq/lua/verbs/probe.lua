-- probe: which commands may this user not run on a key of the queue? Each is tried on a key that does not exist, and
-- that is deleted at once if the command makes it. Fails if a key of the queue is of a foreign type.
-- ARGS  1 call id   2 age of the call, ms   3.. harmless number, (length, word * length) * harmless; making number,
--       (size, part * size) * making: first the commands that make no key; KEY stands for the key that does not exist,
--       and KEY:NAME for a key of the queue; then those that make the key; the key is deleted after each of them
-- Reply {refused *}: names of the commands that are refused
verb('probe', {flags = {'allow-oom'}}, function()
  local refused, at, may_delete = {}, 3, true
  local function try_all(after)
    local count = tonumber(args[at])
    at = at + 1
    for _ = 1, count do
      local words, size = {}, tonumber(args[at])
      for i = 1, size do
        local of = string.match(args[at + i], '^KEY:?(.*)$')
        words[i] = of == '' and key.probe or of and key[of] or args[at + i]
      end
      at = at + size + 1
      local reply = try(unpack(words))
      local said = type(reply) == 'table' and reply.err and tostring(reply.err) or ''
      if string.find(said, 'NOPERM') or string.find(said, 'ACL failure') or string.find(said, 'executing the script can') then
        refused[#refused + 1] = words[1]
        may_delete = may_delete and words[1] ~= 'DEL'
      elseif string.find(said, 'WRONGTYPE', 1, true) then
        return {err = 'WRONGTYPE ' .. words[2] .. ' is of a type that ' .. words[1] .. ' does not take'}
      elseif after then
        call('DEL', key.probe)
      end
    end
  end
  local foreign = try_all(false)
  if foreign then return foreign end
  if may_delete then try_all(true) end
  return refused
end)
