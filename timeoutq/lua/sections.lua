-- sections: the options of a call. They stand behind the words that every call of the verb has, each as one section, in
-- any order: the name of the option, how many words follow, and these words:
--   put   2 a b        again 0   payloads 2 1 {"page":3}    put a and b, also if they are done or failed; a has a
--         payload
--   ack   1 w#1 1 a    again 1 60000   put 1 b              a is ready again in a minute; b is put
-- The header of a verb names its sections behind SECTIONS, and the form of each:
--   again=0            no words                                  given.again is true
--   payload=1          one word                                  given.payload is this word
--   again=ms           one whole number of milliseconds          given.again is the word of this number
--   put=n              any number of words                       given.put is the list of these words
--   payloads=pairs     pairs, each of a position and a word      given.payloads[i] is the word for the task or lease i
--                      of the call
--   blocks=numbers     the same, each word a whole number        given.blocks[i] is the word of this number
-- sections(at, takes) reads those that begin at the word args[at]; `takes` are those that the verb takes. If a section
-- is unknown or cannot be read, the second value is an error: the verb replies with the error and writes nothing.
local function is_number(word)
  return string.find(word, '^%d+$') and #word <= 15
end

local function sections(at, takes)
  if not args[at] then return none end
  local given = {}
  while args[at] do
    local name, count = args[at], tonumber(args[at + 1])
    local form = string.find(name, '^[%l_]+$') and string.match(takes, ' ' .. name .. '=(%w+)')
    if not form then
      return given, {err = 'SECTION ' .. string.sub(name, 1, 40) .. ' is unknown; this script takes' .. takes}
    elseif given[name] then
      return given, {err = 'SECTION ' .. name .. ' stands twice'}
    end
    local exact, paired = form == 'ms' and 1 or tonumber(form), form == 'numbers' or form == 'pairs'
    local fits = count and count >= 0 and at + 1 + count <= #args and count % (paired and 2 or 1) == 0
      and (not exact or count == exact) and (form ~= 'ms' or is_number(args[at + 2]))
    if fits and form == 'n' then
      given[name] = {unpack(args, at + 2, at + 1 + count)}
    elseif fits and paired then
      given[name] = {}
      for i = at + 2, at + count, 2 do
        local place, word = tonumber(args[i]), args[i + 1]
        fits = fits and place and place % 1 == 0 and (form == 'pairs' or is_number(word))
        if fits then given[name][place] = word end
      end
    elseif fits then
      given[name] = form == '0' or args[at + 2]
    end
    if not fits then return given, {err = 'SECTION ' .. name .. ' is cut short, or is not ' .. name .. '=' .. form} end
    at = at + 2 + count
  end
  return given
end
