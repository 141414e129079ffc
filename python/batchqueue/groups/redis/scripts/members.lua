-- ARGV: none
expire()
return {
  number_of('ver'), now, redis.call('HGETALL', INFO),
  redis.call('ZRANGE', LEASE, 0, -1, 'WITHSCORES'), redis.call('HGETALL', STATS),
  redis.call('HGETALL', OWN), redis.call('HGETALL', WANT), redis.call('HGETALL', LAST),
}
