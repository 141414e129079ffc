-- ARGV: group, id, done
redis.call('HSETNX', FENCE, 't', '0')
redis.call('HSET', FENCE, 's', '', 'o', ARGV[2], 'n', ARGV[3], 'at', text(now))
redis.call('ZADD', GROUPS, ARGV[3], ARGV[1])
redis.call('DEL', ASIDE)
return 0
