-- ARGV: max_len, then each record, preceded by the number of its fields
local max_len, records = tonumber(ARGV[1]), stream()
local least = redis.call('ZRANGE', GROUPS, 0, 0, 'WITHSCORES')[2]
local unread = records.length
if least then
  unread = math.min(unread, records.added - tonumber(least))
end
local ids, index = {}, 2
while index <= #ARGV and unread < max_len do
  local fields
  fields, index = fields_at(index)
  ids[#ids + 1] = redis.call('XADD', STREAM, '*', unpack(fields))
  unread = unread + 1
end
return ids
