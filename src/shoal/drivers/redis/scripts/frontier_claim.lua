-- Claim the targets of redirects that nobody has fetched or is about to fetch.
-- ARGV[3..]: for each target: its key, its stored form (two digits for its fate, the URL that redirects, the rest), and
-- the length of the URL that redirects.
-- Returns: OK, a list of 1 (claimed) or 0 for each target, a list of former fates of targets that had been skipped, the
-- number of targets that count as opened and settled at the same time, the counters.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local claimed, reopened, opened = {}, {}, 0
for at = 3, #ARGV, 3 do
  local key, stored, length = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local fate = redis.call('HGET', fates, key)
  local earlier = redis.call('HGET', targets, key)
  local free
  if earlier then -- an earlier attempt of the same URL may have claimed it
    free = string.sub(earlier, 3, 10 + length) == string.sub(stored, 3, 10 + length)
  elseif fate then
    free = claimable[fate] or false
    if free then
      count('skip:' .. fate, -1)
      reopened[#reopened + 1] = fate
      opened = opened + 1
    end
  elseif redis.call('SISMEMBER', seen, key) == 1 then
    free = redis.call('SISMEMBER', processed, key) == 0 and redis.call('SISMEMBER', busy, key) == 0
  else
    free = true
    opened = opened + 1
  end
  if free then
    redis.call('HSET', targets, key, stored)
    -- A target that is itself waiting stays open until its turn comes.
    if fate or redis.call('SISMEMBER', seen, key) == 0 then
      redis.call('HSET', fates, key, string.format('%d', tonumber(string.sub(stored, 1, 2))))
    end
  end
  claimed[#claimed + 1] = free and 1 or 0
end
count('opened', opened)
count('settled', opened)
return { 'OK', claimed, reopened, opened, totals() }
