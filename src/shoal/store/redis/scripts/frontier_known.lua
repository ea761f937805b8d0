-- Record URLs that were settled before, for a frontier that is built again. Counts each as opened and settled.
-- ARGV[3]: the fate. ARGV[4..]: keys.
-- Returns: OK, how many were new, the counters.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local new = 0
for at = 4, #ARGV do
  if redis.call('SADD', seen, ARGV[at]) == 1 then
    new = new + 1
    if ARGV[3] == FETCHED then
      redis.call('SADD', processed, ARGV[at])
    else
      redis.call('HSET', fates, ARGV[at], ARGV[3])
    end
  end
end
count('opened', new)
count('settled', new)
return { 'OK', new, totals() }
