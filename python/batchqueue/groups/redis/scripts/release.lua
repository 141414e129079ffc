-- ARGV: session, then pairs of a partition and its token
local owned = {}
for index = 2, #ARGV, 2 do
  if redis.call('HGET', OWN, ARGV[index]) == ARGV[1] .. ' ' .. ARGV[index + 1] then
    owned[#owned + 1] = ARGV[index]
  end
end
free(owned, ARGV[1])
return #owned
