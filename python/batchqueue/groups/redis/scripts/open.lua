-- ARGV: group, token, session, start
local group, token, session = ARGV[1], ARGV[2], ARGV[3]
local there, records = fence(), stream()

if not there then
  local offset, done = '0-0', records.added - records.length
  if ARGV[4] == 'latest' then
    offset, done = records.last, records.added
  end
  there = {offset = offset, done = text(done)}
  redis.call('HSET', FENCE, 'o', offset, 'n', there.done)
  redis.call('ZADD', GROUPS, there.done, group)
elseif tonumber(token) <= tonumber(there.token)
  and not (token == there.token and session == there.session) then  -- R3
  return {'fenced', tonumber(there.token)}
end
redis.call('HSET', FENCE, 't', token, 's', session, 'at', text(now))
-- Once single entries were deleted, the numbers cannot distinguish those from a gap.
local added = records.has_deletions and tonumber(there.done) + records.length or records.added
return {
  'opened', there.offset, tonumber(there.done), records.last, added, records.length,
  records.first or '',
}
