-- Count the URLs that wait.
-- Returns: OK, the number of open URLs that nobody holds.
local state = quick_state()
if state ~= 'OK' then return { state } end
local totals = redis.call('HMGET', counts, 'opened', 'settled')
local waiting = (totals[1] or 0) - (totals[2] or 0)
for _, name in ipairs(redis.call('HKEYS', walkers)) do waiting = waiting - redis.call('ZCARD', held_by(name)) end
return { 'OK', waiting }
