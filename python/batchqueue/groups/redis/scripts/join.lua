-- ARGV: session, lease_ms, info, name, process, number of the session, partitions, asked_us
local session, lease_ms, info, name = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local process, number = tonumber(ARGV[5]), tonumber(ARGV[6])

if meta.proto and meta.proto ~= PROTOCOL then
  return {'protocol', meta.proto}
end
expire()
if now_us - tonumber(ARGV[8]) > math.floor(tonumber(lease_ms) * 1000 / 4) then  -- R6
  return 'late'
end
for other, stored in pairs(table_of(redis.call('HGETALL', INFO))) do
  local there = cjson.decode(stored)
  if there.name == name and other ~= session then
    local its_process, its_number = tonumber(there.process), tonumber(there.number)
    if its_process > process or (its_process == process and its_number >= number) then  -- R6
      return {'replaced', there.host, there.pid}
    end
    remove(other, 'replaced')
  end
end
if not is_member(session) then
  redis.call('HSET', INFO, session, info)
  redis.call('ZADD', LEASE, 0, session)
  if number_of('p') == 0 then
    set('p', ARGV[7])
  end
  set('proto', PROTOCOL)
  change_members('join', session)
end
renew(session, lease_ms)
return {'joined', number_of('p'), number_of('ver')}
