-- hostname: gives the host of a URL, on a polite queue. `arguments.host` does the same in Python. Three limits keep the work for
-- one id at about one pass over the bytes of the id. A name of over 255 bytes is only made lower case, from A to Z. A name with
-- over 96 bytes or over 8 labels that are not ASCII gets no punycode. A label of over 63 characters gets no punycode either
do
  local met -- the ASCII form of each name that this call has looked up

  function hosts.begin_names() met = {} end

  local any -- the function that reads any URL, once a call has met a URL that needs it

  -- reader: makes the function that reads any URL. To make its tables and functions takes longer than to read a usual URL
  local function reader()
    -- capitals: one row per range of capital letters: the first, the last, the step from one to the next, and what to add to a
    -- capital to get its small letter. small: the small letter of each character that was looked up
    local capitals = {
      {192, 214, 1, 32}, {216, 222, 1, 32}, {256, 302, 2, 1}, {306, 310, 2, 1}, {313, 327, 2, 1}, {330, 374, 2, 1},
      {376, 376, 1, -121}, {377, 381, 2, 1}, {416, 420, 2, 1}, {431, 431, 1, 1}, {902, 902, 1, 38}, {904, 906, 1, 37},
      {908, 908, 1, 64}, {910, 911, 1, 63}, {913, 929, 1, 32}, {931, 939, 1, 32}, {1024, 1039, 1, 80},
      {1040, 1071, 1, 32}, {1120, 1152, 2, 1}, {1162, 1214, 2, 1}, {1216, 1216, 1, 15}, {1217, 1229, 2, 1},
      {1232, 1326, 2, 1}, {7680, 7828, 2, 1}, {7838, 7838, 1, -7615}, {7840, 7934, 2, 1},
    }
    local small = {}

    local function lower(point)
      if point < 192 or point > 7934 then return point end
      local found = small[point]
      if found then return found end
      found = point
      for i = 1, #capitals do
        local first, last, step, away = unpack(capitals[i])
        if point >= first and point <= last and (point - first) % step == 0 then
          found = point + away
          break
        end
      end
      small[point] = found
      return found
    end

    -- points_of: the characters of a label as numbers, capitals made small, and how many there are; nil for a label that is too
    -- long or is not UTF-8. The large constants take away the marker bits of all bytes: 12416 is 192 * 64 + 128
    local function points_of(label)
      local points, count, at, last, bytes = {}, 0, 1, #label, {string.byte(label, 1, -1)}
      while at <= last do
        local a, point = bytes[at], nil
        if count == 63 then return nil end
        if a < 128 then
          point, at = a, at + 1
        elseif a >= 224 and a < 240 then
          local b, c = bytes[at + 1], bytes[at + 2]
          if not c or b < 128 or b > 191 or c < 128 or c > 191 then return nil end
          point, at = a * 4096 + b * 64 + c - 925824, at + 3
          if point < 2048 or point >= 55296 and point < 57344 then return nil end
        elseif a >= 194 and a < 224 then
          local b = bytes[at + 1]
          if not b or b < 128 or b > 191 then return nil end
          point, at = a * 64 + b - 12416, at + 2
        else
          local b, c, d = bytes[at + 1], bytes[at + 2], bytes[at + 3]
          if a < 240 or a > 244 or not d or b < 128 or b > 191 or c < 128 or c > 191 or d < 128 or d > 191 then return nil end
          point, at = a * 262144 + b * 4096 + c * 64 + d - 63447168, at + 4
          if point < 65536 or point > 1114111 then return nil end
        end
        if point >= 192 and point <= 7934 then point = small[point] or lower(point) end
        count = count + 1
        points[count] = point
      end
      return points, count
    end

    -- punycode: a label as RFC 3492 encodes it, with 'xn--' in front; a label that `points_of` refuses stays as it is. To be
    -- quick, it divides whole numbers without math.floor and reads digits from a table: one call of a function would cost as
    -- much as all other work on a digit. delta, bias, n, q, k and t have their names from the RFC
    local digits = {}
    for i = 0, 35 do digits[i] = string.char(i < 26 and i + 97 or i + 22) end

    local function punycode(label)
      local points, last = points_of(label)
      if not points then return label end
      -- order: the characters that are not ASCII, the smallest first; each entry is the character * 64 + its place in the label
      local out, size, order, foreign = {'xn--'}, 1, {}, 0
      for i = 1, last do
        local point = points[i]
        if point < 128 then
          size = size + 1
          out[size] = string.char(point)
        else
          foreign = foreign + 1
          order[foreign] = point * 64 + i
        end
      end
      table.sort(order)
      local basic, delta, bias, n = size - 1, 0, 72, 128
      -- handled: how many characters are encoded; counted: the place in the label up to which delta has counted
      local handled, counted, at = basic, 0, 1
      if basic > 0 then size, out[size + 1] = size + 1, '-' end
      while at <= foreign do
        local place = order[at] % 64
        local point = (order[at] - place) / 64
        if point > n then
          -- a larger character is next: delta counts to the end of the label, then skips to this character
          if counted > 0 then
            for i = counted + 1, last do
              if points[i] < n then delta = delta + 1 end
            end
            delta, n, counted = delta + 1, n + 1, 0
          end
          delta, n = delta + (point - n) * (handled + 1), point
        end
        for i = counted + 1, place - 1 do
          if points[i] < n then delta = delta + 1 end
        end
        -- write delta in digits
        local q, k = delta, 36 - bias
        while true do
          local t = k <= 1 and 1 or k >= 26 and 26 or k
          if q < t then break end
          local digit = (q - t) % (36 - t)
          size = size + 1
          out[size] = digits[t + digit]
          q, k = (q - t - digit) / (36 - t), k + 36
        end
        size = size + 1
        out[size] = digits[q]
        -- adapt the bias for the next character
        if handled == basic then delta = (delta - delta % 700) / 700 else delta = (delta - delta % 2) / 2 end
        handled = handled + 1
        delta, k = delta + (delta - delta % handled) / handled, 0
        while delta > 455 do
          delta, k = (delta - delta % 35) / 35, k + 36
        end
        bias, delta = k + (36 * delta - 36 * delta % (delta + 38)) / (delta + 38), 0
        counted, at = place, at + 1
      end
      return table.concat(out, '', 1, size)
    end

    -- ascii: a name in which each label that is not ASCII is in punycode; a script works this out once for each name
    local function ascii(name)
      local found = met[name]
      if not found then
        local labels, _, bytes = 0, string.gsub(name, '[\128-\255]', '')
        found = bytes > 96 and name or string.gsub(name, '[^.:]+', function(label)
          if not string.find(label, '[\128-\255]') then return nil end
          labels = labels + 1
          return labels <= 8 and punycode(label) or nil
        end)
        if labels > 8 then found = name end
        met[name] = found
      end
      return found
    end

    -- bare: a URL as programs that fetch it read it (the URL standard of WHATWG): without blanks and control bytes at its ends,
    -- and without tabs and line ends anywhere
    local function bare(id)
      local first, last = 1, #id
      while first <= last and string.byte(id, first) <= 32 do first = first + 1 end
      while last > first and string.byte(id, last) <= 32 do last = last - 1 end
      id = string.sub(id, first, last)
      return string.find(id, '[\t\n\r]') and string.gsub(id, '[\t\n\r]', '') or id
    end

    return function(id)
      id = bare(id)
      local scheme, mark, at = string.match(id, '^(%a[%w+.-]*)(:?/?/?)()')
      if mark ~= '://' then return false end
      local name = string.match(id, '^[^/?#\\]*', at)
      if string.find(name, '@', 1, true) then name = string.match(name, '^.*@(.*)$') end
      name = string.lower(name)
      if #name > 255 then return name end
      local foreign = string.find(name, '[\128-\255]')
      if foreign then name = string.gsub(name, '\227\128\130', '.') end
      if string.find(name, ':', 1, true) then
        local port = string.match(name, ':(%d*)$')
        scheme = string.lower(scheme)
        if port == '' or (port == '80' and scheme == 'http') or (port == '443' and scheme == 'https') then
          name = string.sub(name, 1, -2 - #port)
        end
        -- dots go where a port follows: example.com.:8080 is example.com:8080
        name = string.gsub(name, '(%.+)(:?)', function(_, colon) return colon ~= '' and colon or nil end)
      end
      local last = #name
      while string.byte(name, last) == 46 do last = last - 1 end
      name = string.sub(name, 1, last)
      if foreign then name = ascii(name) end
      return name ~= '' and name
    end
  end

  -- host_of: the host of a URL by RFC 3986: in lower case, with its port unless the port is the usual one of the scheme; false
  -- for an id that is no URL or names no host. No pattern here reads the same bytes again and again: an anchor allows it only
  -- one start, or it begins with a colon, or an optional part at its end makes the first try match
  function hosts.name_of(id)
    -- nearly all URLs have this form, and their hosts need no change
    local usual = string.match(id, '^https?://([a-z0-9.-]*[a-z0-9-])[/?#]')
    if usual then return usual end
    any = any or reader()
    return any(id)
  end
end
