-- ARGV: session, number, lease_ms, stats
local session = ARGV[1]

expire()
local refusal = refuse(session, ARGV[2])
if refusal then
  return refusal
end
renew(session, ARGV[3])  -- never revives a session: refuse comes before (R7)
redis.call('HSET', STATS, session, ARGV[4])
local ticket = {}
if plan_in_ms() == 0 then
  set('tick', text(now))
  ticket = {
    number_of('mver'), tonumber(meta.dirty or '0'), number_of('p'),
    redis.call('HGETALL', INFO), redis.call('HGETALL', LAST), redis.call('GET', LOAD) or '{}',
    redis.call('HGETALL', STATS),
  }
end
return {number_of('ver'), next_ms(session), member(session).leaving and 1 or 0, ticket}
