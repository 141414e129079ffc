-- The time of the server in microseconds since 1970, the same in all of a script.
local function clock_us()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end
