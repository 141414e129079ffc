-- ARGV: group, token, session, then each letter: its id, the number of its fields, its fields
local there = fence()

local refused = refusal(there, ARGV[2], ARGV[3])
if refused then
  return refused
end
local index, count = 4, 0
while index <= #ARGV do
  local id, fields = ARGV[index], nil
  fields, index = fields_at(index + 1)
  if is_above(id, there.offset) and redis.call('SADD', ASIDE, id) == 1 then  -- R18
    local reply = redis.pcall('XADD', DEAD, '*', 'id', id, unpack(fields))
    if type(reply) == 'table' and reply.err then
      redis.call('SREM', ASIDE, id)  -- otherwise the next attempt would consider it stored
      return reply
    end
    count = count + 1
  end
end
return count
