-- ARGV: partitions
if tonumber(ARGV[1]) > number_of('p') then
  set('p', ARGV[1])
  change_members('resize')
end
return number_of('p')
