-- Forget the lanes if nobody has used them for a while. ARGV[2]: seconds.
-- Returns: OK and 1 if the lanes are gone, else 0; or FOREIGN.
-- Reading the generation counts as use, so it is read only after the idle time: otherwise, each try would delay the
-- next one. A server that evicts the least frequently used keys does not record idle times, so its lanes stay.
local idle = redis.pcall('OBJECT', 'IDLETIME', KEYS[1])
if type(idle) == 'table' or (idle and idle < tonumber(ARGV[2])) then return { 'OK', 0 } end
local state = state_of_generation()
if state == 'FOREIGN' then return { state } end
if state == 'OK' then
  for _, name in ipairs(redis.call('SMEMBERS', queues)) do
    local queue = queue_key(name)
    redis.call('UNLINK', queue, places_of(queue), ready_of(queue), later_of(queue))
  end
  redis.call('UNLINK', KEYS[1], pending, processing, queues, wake_up)
end
return { 'OK', 1 }
