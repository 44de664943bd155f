-- states: where tasks are, and nothing else of them; it reads only.
-- ARGS  1 call id   2 age of the call, ms   3.. id *
-- Reply letters, one per id: t w p d f s the state that holds it; u none does
verb('states', {flags = {'no-writes'}}, function()
  return table.concat(find.letters({unpack(args, 3)}))
end)
