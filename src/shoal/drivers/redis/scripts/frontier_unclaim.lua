-- Let other walkers take URLs from the hosts that a walker has claimed; the walker keeps the URLs that it has taken.
-- ARGV[3]: the walker.
-- Returns: OK.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
for _, host in ipairs(redis.call('SMEMBERS', claimed_by(ARGV[3]))) do
  if redis.call('HGET', claims, host) == ARGV[3] then redis.call('HDEL', claims, host) end
end
redis.call('DEL', claimed_by(ARGV[3]))
return { 'OK' }
