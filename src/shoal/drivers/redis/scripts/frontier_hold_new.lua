-- Add URLs to quarantine that are not known, or that were skipped because of the way in which they were reached. Each
-- URL counts as opened and settled.
-- ARGV[3..]: for each URL: host, depth (four hexadecimal digits), record.
-- Returns: OK, a list of 1 (added) or 0 for each URL, a list of former fates, the counters.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local made, reopened, new = {}, {}, 0
for at = 3, #ARGV, 3 do
  local host, depth, record = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local key = string.sub(record, 1, 12)
  local fate = redis.call('HGET', fates, key)
  local is_new = redis.call('SISMEMBER', seen, key) == 0 and (not fate or reopening[fate])
  if is_new then
    redis.call('SADD', seen, key)
    if fate then
      count('skip:' .. fate, -1)
      reopened[#reopened + 1] = fate
    end
    redis.call('HSET', fates, key, QUARANTINED)
    local seq = depth .. string.format('%010x', redis.call('HINCRBY', counts, 'seq', 1))
    redis.call('HSET', touched, seq, record)
    redis.call('ZADD', quarantine, host, seq)
    new = new + 1
  end
  made[#made + 1] = is_new and 1 or 0
end
count('opened', new)
count('settled', new)
return { 'OK', made, reopened, totals() }
