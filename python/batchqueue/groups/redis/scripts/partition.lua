local STREAM, GROUPS, META, FENCE, DEAD, ASIDE = unpack(KEYS)

local function is_larger(digits, others)
  if #digits ~= #others then
    return #digits > #others
  end
  return digits > others
end

-- Compares ids as text: their numbers may have 64 bits, but Lua's are exact only up to 53 bits.
local function is_above(id, other)
  local ms, sequence = string.match(id, '^(%d+)-(%d+)$')
  local other_ms, other_sequence = string.match(other, '^(%d+)-(%d+)$')
  if ms ~= other_ms then
    return is_larger(ms, other_ms)
  end
  return is_larger(sequence, other_sequence)
end

-- Returns the fence, or nil if the group has not opened the partition.
local function fence()
  local found = redis.call('HMGET', FENCE, 't', 's', 'o', 'n', 'at')
  if found[1] then
    return {token = found[1], session = found[2], offset = found[3], done = found[4], at = found[5]}
  end
end

-- Returns the refusal of a token, or nil if it is the token at the fence (R1).
local function refusal(there, token, session)
  if not there then
    return {'fenced', 0}
  end
  if there.token ~= token or there.session ~= session then
    return {'fenced', tonumber(there.token)}
  end
end

-- The number of entries ever added is exact from Redis 7.0 on (is_exact). Before, it is the
-- current length plus what the script trim removed.
local function stream()
  if redis.call('EXISTS', STREAM) == 0 then
    return {length = 0, last = '0-0', added = 0, is_exact = true}
  end
  local info = table_of(redis.call('XINFO', 'STREAM', STREAM))
  local added, first = info['entries-added'], info['first-entry']
  return {
    length = info.length,
    last = info['last-generated-id'],
    added = added or info.length + tonumber(redis.call('HGET', META, 'trimmed') or '0'),
    is_exact = added ~= nil,
    deleted = info['max-deleted-entry-id'],
    has_deletions = (info['max-deleted-entry-id'] or '0-0') ~= '0-0',  -- XTRIM leaves it alone
    first = first and first[1],
  }
end

-- Returns the fields of an entry, whose number is at an index, and the index after the entry.
local function fields_at(index)
  local count = tonumber(ARGV[index])
  return {unpack(ARGV, index + 1, index + count)}, index + count + 1
end
