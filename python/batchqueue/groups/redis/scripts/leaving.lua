-- ARGV: session
local session = ARGV[1]

if not is_member(session) then
  return 'unknown'
end
if not member(session).leaving then
  -- The text begins with this field. Encoding it again would round its numbers.
  local info = string.gsub(redis.call('HGET', INFO, session), '^{"leaving":false', '{"leaving":true')
  redis.call('HSET', INFO, session, info)
  change_members('leaving', session)
end
return #owned_by(session)
