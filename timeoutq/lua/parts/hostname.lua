-- hostname: the host of a URL, on a polite queue
local host_of
if settings[7] then
  -- the bytes of a label in RFC 3492's form
  local function punycode(label)
    -- capitals: first, last, step, and how far their small letters are
    local capitals = {
      {192, 214, 1, 32}, {216, 222, 1, 32}, {256, 302, 2, 1}, {306, 310, 2, 1}, {313, 327, 2, 1}, {330, 374, 2, 1},
      {376, 376, 1, -121}, {377, 381, 2, 1}, {416, 420, 2, 1}, {431, 431, 1, 1}, {902, 902, 1, 38}, {904, 906, 1, 37},
      {908, 908, 1, 64}, {910, 911, 1, 63}, {913, 929, 1, 32}, {931, 939, 1, 32}, {1024, 1039, 1, 80},
      {1040, 1071, 1, 32}, {1120, 1152, 2, 1}, {1162, 1214, 2, 1}, {1216, 1216, 1, 15}, {1217, 1229, 2, 1},
      {1232, 1326, 2, 1}, {7680, 7828, 2, 1}, {7838, 7838, 1, -7615}, {7840, 7934, 2, 1},
    }
    local points, out, at = {}, {}, 1
    while at <= #label do
      local a = string.byte(label, at)
      local size = a < 128 and 1 or a >= 240 and 4 or a >= 224 and 3 or a >= 192 and 2 or 0
      if size == 0 or at + size - 1 > #label then return label end
      local point = size == 1 and a or a % 2 ^ (7 - size)
      for i = at + 1, at + size - 1 do point = point * 64 + string.byte(label, i) % 64 end
      for i = 1, #capitals do
        local first, last, step, away = unpack(capitals[i])
        if point >= first and point <= last and (point - first) % step == 0 then
          point = point + away
          break
        end
      end
      points[#points + 1] = point
      at = at + size
    end
    for i = 1, #points do
      if points[i] < 128 then out[#out + 1] = string.char(points[i]) end
    end
    local basic, delta, bias, n = #out, 0, 72, 128
    local handled = basic
    if basic > 0 then out[#out + 1] = '-' end
    while handled < #points do
      local least = math.huge
      for i = 1, #points do
        if points[i] >= n and points[i] < least then least = points[i] end
      end
      delta, n = delta + (least - n) * (handled + 1), least
      for i = 1, #points do
        if points[i] < n then
          delta = delta + 1
        elseif points[i] == n then
          local q, k = delta, 36
          while true do
            local t = k <= bias and 1 or k >= bias + 26 and 26 or k - bias
            if q < t then break end
            local digit = t + (q - t) % (36 - t)
            out[#out + 1] = string.char(digit < 26 and digit + 97 or digit + 22)
            q, k = math.floor((q - t) / (36 - t)), k + 36
          end
          out[#out + 1] = string.char(q < 26 and q + 97 or q + 22)
          delta = handled == basic and math.floor(delta / 700) or math.floor(delta / 2)
          delta, k = delta + math.floor(delta / (handled + 1)), 0
          while delta > 455 do
            delta, k = math.floor(delta / 35), k + 36
          end
          bias, delta, handled = k + math.floor(36 * delta / (delta + 38)), 0, handled + 1
        end
      end
      delta, n = delta + 1, n + 1
    end
    return 'xn--' .. table.concat(out)
  end

  -- host_of: the host of a URL as RFC 3986 has it: lower case, port kept unless it is the scheme's own; false for others
  function host_of(id)
    -- nearly all are of this form, and have nothing to be made like others
    local plain = string.match(id, '^https?://([a-z0-9.-]*[a-z0-9-])[/?#]')
    if plain then return plain end
    local scheme, name = string.match(id, '^(%a[%w+.-]*)://([^/?#\\]*)')
    if not scheme then return false end
    if string.find(name, '@', 1, true) then name = string.match(name, '[^@]*$') end
    name = string.lower(name)
    if string.find(name, '[\128-\255]') then
      name = string.gsub(name, '\227\128\130', '.')
      name = string.gsub(name, '[^.:]+', function(label)
        return string.find(label, '[\128-\255]') and punycode(label) or label
      end)
    end
    if string.find(name, ':', 1, true) then
      local port = string.match(name, ':(%d*)$')
      scheme = string.lower(scheme)
      if port == '' or (port == '80' and scheme == 'http') or (port == '443' and scheme == 'https') then
        name = string.sub(name, 1, -2 - #port)
      end
      name = string.gsub(name, '%.+:', ':')
    end
    if string.byte(name, -1) == 46 then name = string.gsub(name, '%.+$', '') end
    return name ~= '' and name
  end
end
