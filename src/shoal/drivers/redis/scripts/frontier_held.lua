-- Read the URLs that walkers hold.
-- ARGV[3..]: walkers; if there are none, all walkers.
-- Returns: OK, for each walker its name and a list with seq, host and record of each URL that it holds.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local names, answer = {}, {}
for at = 3, #ARGV do names[#names + 1] = ARGV[at] end
if #names == 0 then names = redis.call('HKEYS', walkers) end
for _, walker in ipairs(names) do
  local held, rows = redis.call('ZRANGE', held_by(walker), 0, -1, 'WITHSCORES'), {}
  for index = 1, #held, 2 do
    rows[#rows + 1] = held[index]
    rows[#rows + 1] = held[index + 1]
    rows[#rows + 1] = redis.call('HGET', touched, held[index])
  end
  answer[#answer + 1] = { walker, rows }
end
return { 'OK', answer }
