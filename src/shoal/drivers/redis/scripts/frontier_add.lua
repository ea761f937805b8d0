-- Add URLs that are not known.
-- ARGV[3..]: groups: host, depth (four hexadecimal digits), number of URLs (n), n keys, n entries of the queue. No key
-- occurs twice.
-- Returns: OK, the number of new URLs, a list of former fates of URLs that are open again, the counters.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local new, reopened, at = 0, {}, 3
local any_fates = redis.call('EXISTS', fates) == 1
while ARGV[at] do
  local host, depth, size = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local first = at + 3
  local known = redis.call('SMISMEMBER', seen, unpack(ARGV, first, first + size - 1))
  local skipped = any_fates and redis.call('HMGET', fates, unpack(ARGV, first, first + size - 1)) or {}
  local keys, entries = {}, {}
  for index = 1, size do
    local fate = skipped[index]
    if known[index] == 0 and (not fate or reopening[fate]) then
      if fate then
        redis.call('HDEL', fates, ARGV[first + index - 1])
        count('skip:' .. fate, -1)
        reopened[#reopened + 1] = fate
      end
      keys[#keys + 1] = ARGV[first + index - 1]
      entries[#entries + 1] = ARGV[first + size + index - 1]
    end
  end
  if #keys > 0 then
    redis.call('SADD', seen, unpack(keys))
    push(host, depth, entries)
    new = new + #keys
  end
  at = first + 2 * size
end
count('opened', new)
return { 'OK', new, reopened, totals() }
