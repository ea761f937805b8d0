-- Release URLs of a host from quarantine.
-- ARGV[3]: host. ARGV[4..]: the seq of each URL.
-- Returns: OK, the number of released URLs, the counters.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local freed = 0
for at = 4, #ARGV do
  if redis.call('ZREM', quarantine, ARGV[at]) == 1 then
    local record = redis.call('HGET', touched, ARGV[at])
    redis.call('HDEL', fates, string.sub(record, 1, 12))
    put_back(ARGV[at], ARGV[3], record, 0)
    freed = freed + 1
  end
end
count('settled', -freed)
return { 'OK', freed, totals() }
