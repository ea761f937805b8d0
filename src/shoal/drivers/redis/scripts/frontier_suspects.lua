-- Read the suspects that are due, the last ones in the queue first.
-- ARGV[3]: the maximum number.
-- Returns: OK, seq and record of each suspect, whether any URL redirects (1 or 0).
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local due, rows = redis.call('ZRANGEBYSCORE', suspects, '-inf', now, 'LIMIT', 0, 1000), {}
table.sort(due, function(one, other) return one > other end)
for index = 1, math.min(#due, tonumber(ARGV[3])) do
  rows[#rows + 1] = due[index]
  rows[#rows + 1] = redis.call('HGET', touched, due[index])
end
return { 'OK', rows, redis.call('EXISTS', targets) }
