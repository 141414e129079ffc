-- ARGV: group
redis.call('DEL', FENCE, DEAD, ASIDE)
redis.call('ZREM', GROUPS, ARGV[1])
return 0
