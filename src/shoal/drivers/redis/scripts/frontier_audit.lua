-- Check that a frontier is complete.
-- Returns: OK and the counters, or LOST if no URL waits and no URL is held although not all URLs are settled, because
-- the server lost keys.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local open = (redis.call('HGET', counts, 'opened') or 0) - (redis.call('HGET', counts, 'settled') or 0)
if open == 0 or redis.call('EXISTS', queue, suspects) > 0 then return { 'OK', totals() } end
for _, walker in ipairs(redis.call('HKEYS', walkers)) do
  if redis.call('EXISTS', held_by(walker)) == 1 then return { 'OK', totals() } end
end
return { 'LOST' }
