-- Read waiting URLs without taking them.
-- ARGV[3]: R (URLs that were tried before and are due), U (new ones) or A (all URLs that were tried, due or not).
-- ARGV[4..]: for each host: the host, the number of URLs to skip, the number of URLs to read.
-- Returns: OK, a list for each host: seq and record of tried URLs, or depth (hexadecimal) and entry of new ones.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local answer = {}
for at = 4, #ARGV, 3 do
  local host, skip, most, rows = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), {}
  if ARGV[3] ~= 'U' then
    local latest = ARGV[3] == 'R' and now or '+inf'
    for _, seq in ipairs(redis.call('ZRANGEBYSCORE', retries_of(host), '-inf', latest, 'LIMIT', skip, most)) do
      rows[#rows + 1] = seq
      rows[#rows + 1] = redis.call('HGET', touched, seq)
    end
  else
    for _, depth in ipairs(depths_of(host)) do
      local list = list_of(host, depth)
      local size = redis.call('LLEN', list)
      if skip >= size then
        skip = skip - size
      else
        for _, entry in ipairs(redis.call('LRANGE', list, skip, skip + most - #rows / 2 - 1)) do
          rows[#rows + 1] = depth
          rows[#rows + 1] = entry
        end
        skip = 0
      end
      if #rows / 2 >= most then break end
    end
  end
  answer[#answer + 1] = rows
end
return { 'OK', answer }
