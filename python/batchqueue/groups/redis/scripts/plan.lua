-- ARGV: session, member_version, weights, then pairs of a partition and its target
if tonumber(ARGV[2]) ~= number_of('mver') then  -- R10
  return 'stale'
end
local before, wanted, changed, gone, moved = table_of(redis.call('HGETALL', WANT)), {}, {}, {}, {}
for index = 4, #ARGV, 2 do
  local partition, target = ARGV[index], ARGV[index + 1]
  if not is_member(target) then  -- R10
    return 'stale'
  end
  wanted[partition] = target
  if before[partition] ~= target then
    changed[#changed + 1], changed[#changed + 2] = partition, target
    moved[#moved + 1] = tonumber(partition)
  end
end
for partition in pairs(before) do
  if not wanted[partition] then
    gone[#gone + 1] = partition
    moved[#moved + 1] = tonumber(partition)
  end
end
table.sort(moved)
in_parts('HDEL', WANT, gone)
in_parts('HSET', WANT, changed)
redis.call('SET', LOAD, ARGV[3])
set('dirty', '0')
set('tick', '')
set('planned', text(now))
if #moved > 0 then
  wake('plan', ARGV[1], moved)
end
return #moved
