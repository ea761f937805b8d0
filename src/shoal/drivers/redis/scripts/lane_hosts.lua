-- Take the hosts whose best jobs rank best. Taken hosts wait until they are put back; if the process that took them
-- dies, they become ready again.
-- ARGV[2]: hosts whose time is not after this time are made ready. ARGV[3]: hosts whose time is after this time are
-- made ready, too, because the clock was set back. ARGV[4]: the maximum number of hosts per queue to make ready.
-- ARGV[5]: the time until which taken hosts wait. ARGV[6]: the maximum number of hosts to take from each queue.
-- ARGV[7..]: queues.
-- Returns: OK, for each host: the index of its queue, from 0, and the host.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local taken = {}
for at = 7, #ARGV do
  local queue = queue_key(ARGV[at])
  local ready, later = ready_of(queue), later_of(queue)
  local due = redis.call('ZRANGEBYSCORE', later, '-inf', ARGV[2], 'LIMIT', 0, ARGV[4])
  for _, host in ipairs(redis.call('ZRANGEBYSCORE', later, '(' .. ARGV[3], '+inf', 'LIMIT', 0, ARGV[4])) do
    due[#due + 1] = host
  end
  for _, host in ipairs(due) do
    local best = best_at(queue, host)
    if best then redis.call('ZADD', ready, best, host) end
    redis.call('ZREM', later, host)
  end
  local found = redis.call('ZPOPMIN', ready, ARGV[6])
  for index = 1, #found, 2 do
    redis.call('ZADD', later, ARGV[5], found[index])
    taken[#taken + 1] = at - 7
    taken[#taken + 1] = found[index]
  end
end
return { 'OK', taken }
