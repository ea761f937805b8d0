-- Record URLs that are not known and will not be fetched.
-- ARGV[3]: 1 if such a URL counts as opened and settled, else 0. ARGV[4]: the fate. ARGV[5..]: keys.
-- Returns: OK, the number of new URLs, the counters.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local new, fate = 0, ARGV[4]
for at = 5, #ARGV do
  if redis.call('SISMEMBER', seen, ARGV[at]) == 0 then new = new + redis.call('HSETNX', fates, ARGV[at], fate) end
end
count('skip:' .. fate, new)
if ARGV[3] == '1' then
  count('opened', new)
  count('settled', new)
end
return { 'OK', new, totals() }
