-- ARGV: the groups that read the stream. KEYS: their fences, from the seventh on
local known, done = {}, nil
for _, group in ipairs(redis.call('ZRANGE', GROUPS, 0, -1)) do
  known[group] = true
end
if #ARGV ~= redis.call('ZCARD', GROUPS) then
  return 0
end
for index, group in ipairs(ARGV) do
  local offset = known[group] and redis.call('HGET', KEYS[6 + index], 'o')
  if not offset then
    return 0
  end
  if not done or is_above(done, offset) then
    done = offset
  end
end
if not done or done == '0-0' then
  return 0
end
local ms, sequence = string.match(done, '^(%d+)-(%d+)$')
local above = ms .. '-' .. text(tonumber(sequence) + 1)
local count = redis.call('XTRIM', STREAM, 'MINID', '=', above)
redis.call('HINCRBY', META, 'trimmed', count)
return count
