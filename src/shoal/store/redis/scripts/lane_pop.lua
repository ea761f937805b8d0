-- Take the best jobs out of their lines, lane by lane, and remember them until the database has decided about them.
-- ARGV[2]: how many. ARGV[3]: of how many jobs the database has decided (n). ARGV[4..3+n]: their ids.
-- Then for each lane: how many lines it has, and their names.
-- Returns: OK, ids.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local left, decided, at, popped = tonumber(ARGV[2]), tonumber(ARGV[3]), 4 + tonumber(ARGV[3]), {}
for index = 4, 3 + decided do
  if redis.call('ZREM', processing, ARGV[index]) == 1 then redis.call('HDEL', pending, ARGV[index]) end
end
local time = nil
while at <= #ARGV and left > 0 do
  local heads = {}
  for index = at + 1, at + tonumber(ARGV[at]) do
    local line = line_of(ARGV[index])
    local head = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')
    if head[1] then heads[#heads + 1] = { line, tonumber(head[2]) } end
  end
  at = at + 1 + tonumber(ARGV[at])
  table.sort(heads, function(one, other) return one[2] < other[2] end)
  for _, head in ipairs(heads) do
    if left > 0 then
      local found = redis.call('ZPOPMIN', head[1], left)
      for index = 1, #found, 2 do
        local id = found[index]
        local entry = redis.call('HGET', pending, id)
        local place = entry and select(3, read(entry)) or ''
        if place ~= '' then redis.call('ZREM', places_of(head[1]), place) end
        time = time or now()
        redis.call('ZADD', processing, time, id)
        popped[#popped + 1] = id
        left = left - 1
      end
    end
  end
end
return { 'OK', popped }
