-- Read the best jobs that wait at hosts.
-- ARGV[2..]: line, host and how many, of each.
-- Returns: OK, for each host a list of places.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local found = {}
for at = 2, #ARGV, 3 do
  local line, host = line_of(ARGV[at]), ARGV[at + 1]
  local first, last = '[' .. host .. '\t', '(' .. host .. '\n'
  found[#found + 1] = redis.call('ZRANGEBYLEX', places_of(line), first, last, 'LIMIT', 0, ARGV[at + 2])
end
return { 'OK', found }
