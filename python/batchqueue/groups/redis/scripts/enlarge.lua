-- KEYS: the hash of the stream. ARGV: partitions
local partitions = tonumber(redis.call('HGET', KEYS[1], 'p') or '0')
if tonumber(ARGV[1]) > partitions then
  redis.call('HSET', KEYS[1], 'p', ARGV[1])
  return tonumber(ARGV[1])
end
return partitions
