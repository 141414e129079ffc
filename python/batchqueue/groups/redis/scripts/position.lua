-- ARGV: none
local there, records = fence(), stream()
there = there or {
  token = '0', session = '', offset = '0-0', done = text(records.added - records.length), at = '0',
}
-- If a deleted entry is not done, the number of entries left to do is unknown.
local is_known = records.is_exact
  and not (records.deleted and is_above(records.deleted, there.offset))
return {
  tonumber(there.token), there.session, there.offset, tonumber(there.done), records.last,
  is_known and records.added or '', records.length, redis.call('XLEN', DEAD), tonumber(there.at),
  records.has_deletions and 1 or 0,
}
