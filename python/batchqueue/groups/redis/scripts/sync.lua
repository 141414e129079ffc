-- ARGV: session, number, seen, then pairs of a partition and its token
local session = ARGV[1]
local mine = session .. ' '

expire()
local refusal = refuse(session, ARGV[2])
if refusal then
  return refusal
end
local own, want = table_of(redis.call('HGETALL', OWN)), table_of(redis.call('HGETALL', WANT))
local who = member(session)
local held, grants, revoked, freed, lost = {}, {}, {}, {}, {}
for index = 4, #ARGV, 2 do
  local partition, token = ARGV[index], ARGV[index + 1]
  held[partition] = mine .. token
  if own[partition] ~= held[partition] then
    lost[#lost + 1] = tonumber(partition)
  end
end
table.sort(lost)

local token, seen = number_of('tok'), tonumber(ARGV[3])
local owners, names = {}, {}
local function grant(partition)
  token = next_above(math.max(token, seen))  -- R3; fresh even if owned already (R4)
  owners[#owners + 1], owners[#owners + 2] = partition, mine .. text(token)
  names[#names + 1], names[#names + 2] = partition, who.name
  grants[#grants + 1], grants[#grants + 2] = tonumber(partition), token
end

for number = 0, number_of('p') - 1 do
  local partition = tostring(number)
  local owner = own[partition]
  local is_mine = owner and string.sub(owner, 1, #mine) == mine
  if is_mine or not owner then
    local target = want[partition]
    if is_mine and owner == held[partition] then
      -- Without a target it stays: a member whose target died keeps it until there is a plan.
      if who.leaving or (target and target ~= session) then  -- R11
        revoked[#revoked + 1] = number
      end
    elseif target == session and not who.leaving then  -- R11
      grant(partition)
    elseif is_mine then
      freed[#freed + 1] = number
    end
  end
end
if #grants > 0 then
  set('tok', text(token))
  in_parts('HSET', OWN, owners)
  in_parts('HSET', LAST, names)
end
free(freed, session)
return {number_of('ver'), number_of('p'), next_ms(session), grants, revoked, lost}
