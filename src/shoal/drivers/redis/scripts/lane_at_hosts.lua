-- Read the best jobs that wait at hosts. A place whose job is not in a lane is removed.
-- ARGV[2..]: for each host: the queue, the host, and the maximum number of jobs.
-- Returns: OK, for each host a list of places.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local result = {}
for at = 2, #ARGV, 3 do
  local queue, host = queue_key(ARGV[at]), ARGV[at + 1]
  local first, last = '[' .. host .. '\t', '(' .. host .. '\n'
  local found, stale
  repeat
    found, stale = {}, {}
    for _, place in ipairs(redis.call('ZRANGEBYLEX', places_of(queue), first, last, 'LIMIT', 0, ARGV[at + 2])) do
      local is_there = redis.call('HEXISTS', pending, string.sub(place, #host + 19)) == 1
      table.insert(is_there and found or stale, place)
    end
    if #stale > 0 then redis.call('ZREM', places_of(queue), unpack(stale)) end
  until #stale == 0
  result[#result + 1] = found
end
return { 'OK', result }
