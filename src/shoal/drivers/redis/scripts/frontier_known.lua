-- Record pages that were settled before, for a frontier that is rebuilt. Each page counts as opened and settled.
-- ARGV[3]: the fate. ARGV[4..]: for each page: its key, and the host towards which it counts or ''.
-- Returns: OK, the number of new pages, the counters.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local new = 0
for at = 4, #ARGV, 2 do
  local key, host = ARGV[at], ARGV[at + 1]
  if redis.call('SADD', seen, key) == 1 then
    new = new + 1
    if ARGV[3] == FETCHED then
      redis.call('SADD', processed, key)
    else
      redis.call('HSET', fates, key, ARGV[3])
    end
    if host ~= '' then redis.call('HINCRBY', pages, host, 1) end
  end
end
count('opened', new)
count('settled', new)
return { 'OK', new, totals() }
