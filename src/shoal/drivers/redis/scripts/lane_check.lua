-- Begin the lanes if the server has none, and read the jobs that a repair has to check.
-- ARGV[2]: seconds after which a popped job counts as forgotten. ARGV[3]: the maximum number of forgotten jobs to read.
-- ARGV[4]: the number of queues to look at. ARGV[5]: the number of jobs per queue.
-- Returns: OK or FOREIGN; 1 if the lanes have just begun, else 0; forgotten jobs; jobs at the heads of some queues.
local state, began = state_of_generation(), 0
if state == 'FOREIGN' then return { state } end
if state == 'LOST' then
  redis.call('SET', KEYS[1], ARGV[1])
  began = 1
end
local forgotten = redis.call('ZRANGEBYSCORE', processing, '-inf', now() - ARGV[2], 'LIMIT', 0, ARGV[3])
local heads = {}
for _, name in ipairs(redis.call('SRANDMEMBER', queues, ARGV[4])) do
  local queue = queue_key(name)
  local found = redis.call('ZRANGE', queue, 0, ARGV[5] - 1)
  if #found == 0 then
    redis.call('SREM', queues, name)
    redis.call('DEL', places_of(queue), ready_of(queue), later_of(queue))
  end
  for _, id in ipairs(found) do
    if redis.call('HEXISTS', pending, id) == 1 then
      heads[#heads + 1] = id
    else
      redis.call('ZREM', queue, id)
    end
  end
end
return { 'OK', began, forgotten, heads }
