-- Take the best jobs out of their queues, lane by lane, and remember these jobs until the database has decided about
-- them.
-- ARGV[2]: the maximum number of jobs. ARGV[3]: the number of jobs about which the database has decided (n).
-- ARGV[4..3+n]: their ids.
-- Then for each lane: the number of its queues, and their names.
-- Returns: OK, ids.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local left, decided, at, popped = tonumber(ARGV[2]), tonumber(ARGV[3]), 4 + tonumber(ARGV[3]), {}
if decided > 0 then
  -- A job that was pushed again meanwhile is no longer remembered.
  local ids, over = { unpack(ARGV, 4, 3 + decided) }, {}
  for index, time in ipairs(redis.call('ZMSCORE', processing, unpack(ids))) do
    if time then over[#over + 1] = ids[index] end
  end
  if #over > 0 then
    redis.call('ZREM', processing, unpack(over))
    redis.call('HDEL', pending, unpack(over))
  end
end
while at <= #ARGV and left > 0 do
  local heads = {}
  for index = at + 1, at + tonumber(ARGV[at]) do
    local queue = queue_key(ARGV[index])
    local head = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
    if head[1] then heads[#heads + 1] = { queue, tonumber(head[2]) } end
  end
  at = at + 1 + tonumber(ARGV[at])
  table.sort(heads, function(one, other) return one[2] < other[2] end)
  for _, head in ipairs(heads) do
    local found = left > 0 and redis.call('ZPOPMIN', head[1], left) or {}
    if #found > 0 then
      local ids, times, places, time = {}, {}, {}, now()
      for index = 1, #found, 2 do
        ids[#ids + 1] = found[index]
        times[#times + 1] = time
        times[#times + 1] = found[index]
        popped[#popped + 1] = found[index]
      end
      for _, entry in ipairs(redis.call('HMGET', pending, unpack(ids))) do
        local place = entry and select(3, read(entry)) or ''
        if place ~= '' then places[#places + 1] = place end
      end
      if #places > 0 then redis.call('ZREM', places_of(head[1]), unpack(places)) end
      redis.call('ZADD', processing, unpack(times))
      left = left - #ids
    end
  end
end
return { 'OK', popped }
