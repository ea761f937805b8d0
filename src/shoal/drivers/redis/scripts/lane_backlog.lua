-- Count the jobs of a queue whose hosts may be requested now.
-- ARGV[2]: the maximum to count up to. ARGV[3]: the queue.
-- Returns: OK, the number of jobs.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local most, queue, count = tonumber(ARGV[2]), queue_key(ARGV[3]), 0
for _, host in ipairs(redis.call('ZRANGE', ready_of(queue), 0, math.min(most, 1000) - 1)) do
  if count < most then
    count = count + redis.call('ZLEXCOUNT', places_of(queue), '[' .. host .. '\t', '(' .. host .. '\n')
  end
end
return { 'OK', math.min(count, most) }
