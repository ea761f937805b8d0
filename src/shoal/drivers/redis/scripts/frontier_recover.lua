-- Put back the URLs of a walker that lost its lease, with their records after its crash.
-- ARGV[3]: the walker. ARGV[4..]: for each URL: seq, record.
-- Returns: OK, how many URLs were put back.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local walker, back = ARGV[3], 0
for at = 4, #ARGV, 2 do
  local host = redis.call('ZSCORE', held_by(walker), ARGV[at])
  if host then
    redis.call('ZREM', held_by(walker), ARGV[at])
    redis.call('HSET', touched, ARGV[at], ARGV[at + 1])
    put_back(ARGV[at], string.format('%d', tonumber(host)), ARGV[at + 1], 0)
    back = back + 1
  end
end
if redis.call('EXISTS', held_by(walker)) == 0 then dismiss(walker) end
return { 'OK', back }
