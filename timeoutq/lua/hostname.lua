-- hostname: the host of a URL, on a polite queue, in one pass over its bytes. `arguments.host` gives the same host in
-- Python for a URL whose host is plain ASCII. For any other URL, a client sends the host with the task, and `groups`
-- keeps the host. Without it (redis-cli has put the task), the bytes of the host count as they are, but for A to Z: a
-- host of its own, besides the one that clients name

-- name_of: the host by RFC 3986: in lower case, with its port unless the port is the usual one of the scheme; false for
-- an id that is no URL or names no host. No pattern here reads the same bytes again and again: an anchor allows it only
-- one start, or what it begins with cannot be part of what follows
function hosts.name_of(id)
  -- nearly all URLs have this form, and their hosts need no change
  local usual = string.match(id, '^https?://([a-z0-9.-]*[a-z0-9-])[/?#]')
  if usual then return usual end
  -- the URL as programs that fetch it read it (the URL standard of WHATWG): without blanks and control bytes at its
  -- ends, and without tabs and line ends anywhere
  id = string.gsub(string.match(id, '^[^\33-\255]*(.*[\33-\255])') or '', '[\t\n\r]', '')
  local scheme, name = string.match(id, '^(%a[%w+.-]*)://([^/?#\\]*)')
  if not name then return false end
  name = string.lower(string.match(name, '@([^@]*)$') or name)
  if #name > 255 then return name end
  local before, port = string.match(name, '^(.*):(%d*)$')
  scheme = string.lower(scheme)
  if port == '' or (port == '80' and scheme == 'http') or (port == '443' and scheme == 'https') then name = before end
  -- dots go where a port follows: example.com.:8080 is example.com:8080; and at the end
  if string.find(name, '.:', 1, true) then
    name = string.gsub(name, '(%.+)(:?)', function(_, colon) return colon ~= '' and colon or nil end)
  end
  return string.match(name, '^.*[^.]') or false
end
