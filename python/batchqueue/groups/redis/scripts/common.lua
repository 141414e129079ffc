local now_us = clock_us()
local now = math.floor(now_us / 1000)

-- Lua would print a number this large as 1.7e15.
local function text(number)
  return string.format('%.0f', number)
end

-- Returns a table made from a flat list, such as HGETALL and XINFO return.
local function table_of(list)
  local found = {}
  for index = 1, #list, 2 do
    found[list[index]] = list[index + 1]
  end
  return found
end

-- Runs a command with any number of arguments: Lua passes a few thousand at a time.
local function in_parts(command, key, arguments)
  for first = 1, #arguments, 1000 do
    redis.call(command, key, unpack(arguments, first, math.min(first + 999, #arguments)))
  end
end
