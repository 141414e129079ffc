local META, LEASE, TERM, INFO, OWN, WANT, LAST, LOAD, STATS, SEQ, CTRL = unpack(KEYS)

local SETTLE_MS = 50
local LONGEST_SETTLE_MS = 500
local TICKET_MS = 500
local REBALANCE_MS = 30000
local HISTORY = 1000
local PROTOCOL = '1'

local meta = table_of(redis.call('HGETALL', META))

local function number_of(field)
  return tonumber(meta[field] or '0')
end

local function set(field, value)
  meta[field] = value
  redis.call('HSET', META, field, value)
end

-- Returns a number above all earlier ones, including those that the server has forgotten (R2).
local function next_above(last)
  return math.max(last + 1, now_us)
end

local function is_member(session)
  return redis.call('ZSCORE', LEASE, session) ~= false
end

-- Returns what a session reported when it joined, or an empty table.
local function member(session)
  local info = redis.call('HGET', INFO, session)
  return info and cjson.decode(info) or {}
end

-- Returns the partitions that a session owns, by number.
local function owned_by(session)
  local mine, owned = session .. ' ', {}
  for partition, owner in pairs(table_of(redis.call('HGETALL', OWN))) do
    if string.sub(owner, 1, #mine) == mine then
      owned[#owned + 1] = tonumber(partition)
    end
  end
  table.sort(owned)
  return owned
end

local function wake(kind, session, partitions, name)
  local version = text(next_above(number_of('ver')))
  set('ver', version)
  name = name or (session and member(session).name)
  redis.call(
    'XADD', CTRL, 'MAXLEN', HISTORY, version .. '-0', 'kind', kind, 'at', text(now),
    'session', session or '', 'name', name or '', 'partitions', table.concat(partitions or {}, ',')
  )
end

local function change_members(kind, session, partitions, name)
  if meta.dirty ~= '1' then
    set('since', text(now))
  end
  if kind == 'dead' then
    set('since', text(now - LONGEST_SETTLE_MS))  -- its partitions have waited long enough
  end
  set('dirty', '1')
  set('due', text(math.min(now + SETTLE_MS, number_of('since') + LONGEST_SETTLE_MS)))
  set('tick', '')  -- its plan would be stale
  wake(kind, session, partitions, name)
  set('mver', meta.ver)
end

local function free(partitions, session)
  if #partitions > 0 then
    in_parts('HDEL', OWN, partitions)
    wake('free', session, partitions)
  end
end

local function remove(session, kind)
  local name, owned, targets = member(session).name, owned_by(session), {}
  in_parts('HDEL', OWN, owned)
  -- Partitions assigned to the dead would have no owner until the next plan (R10).
  for partition, target in pairs(table_of(redis.call('HGETALL', WANT))) do
    if target == session then
      targets[#targets + 1] = partition
    end
  end
  in_parts('HDEL', WANT, targets)
  redis.call('ZREM', LEASE, session)
  for _, key in ipairs({TERM, INFO, STATS, SEQ}) do
    redis.call('HDEL', key, session)
  end
  change_members(kind, session, owned, name)
end

local function renew(session, lease_ms)
  redis.call('ZADD', LEASE, text(now + tonumber(lease_ms)), session)
  redis.call('HSET', TERM, session, lease_ms)
  set('at', text(now))
end

-- Cuts the leases that were set before the clock went back; they would last that much longer (R15).
local function cut_leases()
  local ends = table_of(redis.call('ZRANGE', LEASE, 0, -1, 'WITHSCORES'))
  for session, ending in pairs(ends) do
    local longest = now + tonumber(redis.call('HGET', TERM, session))
    if tonumber(ending) > longest then
      redis.call('ZADD', LEASE, text(longest), session)
    end
  end
  set('at', text(now))
end

-- Removes the sessions whose leases are over.
local function expire()
  if number_of('at') > now then
    cut_leases()
  end
  for _, session in ipairs(redis.call('ZRANGEBYSCORE', LEASE, '-inf', text(now))) do
    remove(session, 'dead')
  end
end

-- Returns why a beat or sync does nothing; otherwise records its number.
local function refuse(session, number)
  if not is_member(session) then
    return 'unknown'
  end
  if tonumber(number) <= tonumber(redis.call('HGET', SEQ, session) or '0') then  -- R5
    return 'late'
  end
  redis.call('HSET', SEQ, session, number)
end

-- Returns the time until a plan is due and no ticket is out.
local function plan_in_ms()
  local due, longest
  if meta.dirty == '1' then
    due, longest = number_of('due'), LONGEST_SETTLE_MS
  else
    due, longest = number_of('planned') + REBALANCE_MS, REBALANCE_MS
  end
  if meta.tick and meta.tick ~= '' then
    due, longest = math.max(due, number_of('tick') + TICKET_MS), math.max(longest, TICKET_MS)
  end
  local left = due - now
  if left > longest then  -- only after the clock was set back (R15)
    return 0
  end
  return math.max(0, left)
end

-- Returns the time until a member should beat again (R16).
local function next_ms(session)
  local soonest = plan_in_ms()
  local ends = redis.call('ZRANGE', LEASE, 0, 1, 'WITHSCORES')
  for index = 1, #ends, 2 do
    if ends[index] ~= session then
      return math.min(soonest, tonumber(ends[index + 1]) - now)
    end
  end
  return soonest
end
