-- ARGV: session
if not is_member(ARGV[1]) then
  return 0
end
local owned = #owned_by(ARGV[1])
remove(ARGV[1], 'left')
return owned
