-- Close waiting URLs of a host that has reached its page limit.
-- ARGV[3]: host. ARGV[4]: fate. ARGV[5..]: for each URL: U (new) or T (tried), depth or seq, entry or '', key, key of
-- the redirect target or ''.
-- Returns: OK, the number of closed URLs, the counters.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local host, fate, closed = ARGV[3], ARGV[4], 0
for at = 5, #ARGV, 5 do
  local what, where, entry, key, target = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local removed
  if what == 'U' then
    removed = redis.call('LREM', list_of(host, where), 1, entry)
    if redis.call('EXISTS', list_of(host, where)) == 0 then redis.call('ZREM', depths, place(host, where)) end
  else
    removed = redis.call('ZREM', retries_of(host), where) + redis.call('ZREM', suspects, where)
    redis.call('HDEL', touched, where)
    redis.call('SREM', busy, key)
    redis.call('HDEL', redirected, key)
  end
  if removed > 0 then
    redis.call('HSET', fates, key, fate)
    closed = closed + 1
    local stored = target ~= '' and redis.call('HGET', targets, target)
    if stored then
      redis.call('HSET', targets, target, string.format('%02d', fate) .. string.sub(stored, 3))
      if redis.call('HEXISTS', fates, target) == 1 then redis.call('HSET', fates, target, fate) end
    end
  end
end
count('settled', closed)
count('skip:' .. fate, closed)
return { 'OK', closed, totals() }
