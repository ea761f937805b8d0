-- Look at the whole frontier without reading its URLs.
-- ARGV[3]: a walker, or '' for none: then hosts that any walker has claimed count, too.
-- Returns: OK, the time for looking at the next host or '', the number of held URLs, the number of hosts with waiting
-- URLs, the number of suspects, the counters.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local walker, at, ready = ARGV[3], 0, ''
while ready == '' do
  local found = redis.call('ZRANGE', queue, at, at + 255, 'WITHSCORES')
  for index = 1, #found, 2 do
    local claim = walker ~= '' and redis.call('HGET', claims, found[index])
    if ready == '' and (not claim or string.sub(claim, 1, #walker + 1) == walker .. ':') then ready = found[index + 1] end
  end
  at = at + 256
  if #found < 512 then break end
end
local held = 0
for _, name in ipairs(redis.call('HKEYS', walkers)) do held = held + redis.call('ZCARD', held_by(name)) end
return { 'OK', ready, held, redis.call('ZCARD', queue), redis.call('ZCARD', suspects), redis.call('HGETALL', counts) }
