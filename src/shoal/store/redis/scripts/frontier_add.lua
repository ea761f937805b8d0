-- Add URLs that are not known.
-- ARGV[3..]: groups: host, depth (four hexadecimal digits), how many (n), then n times the key followed by the entry of the queue.
-- Returns: OK, how many were new, a list of former fates of URLs that are open again, the counters.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local new, reopened, at = 0, {}, 3
local any_fates = redis.call('EXISTS', fates) == 1
while ARGV[at] do
  local host, depth, size, entries = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), {}
  for index = at + 3, at + 2 + size do
    local key = string.sub(ARGV[index], 1, 12)
    if redis.call('SADD', seen, key) == 1 then
      local fate = any_fates and redis.call('HGET', fates, key)
      if not fate then
        entries[#entries + 1] = string.sub(ARGV[index], 13)
      elseif reopening[fate] then
        redis.call('HDEL', fates, key)
        count('skip:' .. fate, -1)
        reopened[#reopened + 1] = fate
        entries[#entries + 1] = string.sub(ARGV[index], 13)
      else
        redis.call('SREM', seen, key)
      end
    end
  end
  if #entries > 0 then
    redis.call('RPUSH', list_of(host, depth), unpack(entries))
    redis.call('ZADD', depths, 0, place(host, depth))
    wake(host, now)
    new = new + #entries
  end
  at = at + 3 + size
end
count('opened', new)
return { 'OK', new, reopened, totals() }
