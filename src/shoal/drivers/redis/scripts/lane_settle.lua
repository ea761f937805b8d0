-- Forget jobs that no longer wait, and put back hosts that were taken.
-- ARGV[2]: number of jobs (n). ARGV[3..2+n]: their ids. Then for each host: queue, host, and when to look at it again:
-- a time by the database's clock, or '' for immediately.
-- Returns: OK.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local jobs = tonumber(ARGV[2])
for at = 3, 2 + jobs do
  local entry = redis.call('HGET', pending, ARGV[at])
  if entry then remove(ARGV[at], entry) end
  redis.call('ZREM', processing, ARGV[at])
  redis.call('HDEL', pending, ARGV[at])
end
for at = 3 + jobs, #ARGV, 3 do
  local queue, host, again = queue_key(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  local best = best_at(queue, host)
  if best and again ~= '' then
    redis.call('ZADD', later_of(queue), again, host)
    redis.call('ZREM', ready_of(queue), host)
  else
    redis.call('ZREM', later_of(queue), host)
    if best then redis.call('ZADD', ready_of(queue), best, host) else redis.call('ZREM', ready_of(queue), host) end
  end
end
return { 'OK' }
