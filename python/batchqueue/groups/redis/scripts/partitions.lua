-- KEYS: the hash of the stream. ARGV: the partitions of a new stream, or an empty text
local created = redis.call('HSETNX', KEYS[1], 'p', ARGV[1] == '' and '1' or ARGV[1])
return {tonumber(redis.call('HGET', KEYS[1], 'p')), created}
