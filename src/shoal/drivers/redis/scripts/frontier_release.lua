-- Put back everything that a walker holds, and give up its claims.
-- ARGV[3]: the walker. ARGV[4]: 1 if the walker stays and starts over, else 0.
-- Returns: OK, how many URLs were put back.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local walker = ARGV[3]
-- If a frontier lost its list of walkers, old entries may be left.
local is_known = redis.call('HEXISTS', walkers, walker) == 1
local held = is_known and redis.call('ZRANGE', held_by(walker), 0, -1, 'WITHSCORES') or {}
for index = 1, #held, 2 do
  put_back(held[index], held[index + 1], redis.call('HGET', touched, held[index]), 0)
end
dismiss(walker)
if ARGV[4] == '1' then
  redis.call('HSET', walkers, walker, 0)
  redis.call('PERSIST', KEYS[1])
end
return { 'OK', #held / 2 }
