-- ARGV: group, token, session, id, done, then each command, preceded by the number of its words
local id, done = ARGV[4], ARGV[5]
local there = fence()

local refused = refusal(there, ARGV[2], ARGV[3])
if refused then
  return refused
end
if not is_above(id, there.offset) then  -- R12
  return 'old'
end
local index, ran = 6, 0
while index <= #ARGV do
  local command
  command, index = fields_at(index)
  local reply = redis.pcall(unpack(command))
  if type(reply) == 'table' and reply.err then
    return {'failed', ran, reply.err}
  end
  ran = ran + 1
end
redis.call('HSET', FENCE, 'o', id, 'n', done, 'at', text(now))
redis.call('ZADD', GROUPS, done, ARGV[1])
for _, aside in ipairs(redis.call('SMEMBERS', ASIDE)) do
  if not is_above(aside, id) then
    redis.call('SREM', ASIDE, aside)
  end
end
return 'stored'
