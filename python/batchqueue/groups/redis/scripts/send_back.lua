-- ARGV: count, then each letter: its id, the number of its fields, its fields
local count = tonumber(ARGV[1])
local waiting = redis.call('XRANGE', DEAD, '-', '+', 'COUNT', math.max(1, count))
local letters, index = {}, 2
while index <= #ARGV do
  local id = ARGV[index]
  local letter = waiting[#letters + 1]
  if not letter or letter[2][2] ~= id then
    return 0
  end
  letters[#letters + 1], index = fields_at(index + 1)
end
for number, fields in ipairs(letters) do
  redis.call('XADD', STREAM, '*', unpack(fields))
  redis.call('XDEL', DEAD, waiting[number][1])
end
return #letters
