-- ARGV: none
return text(now_us)
