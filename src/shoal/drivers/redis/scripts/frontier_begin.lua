-- Begin the frontier of a crawl: its generation, and counters of zero.
-- ARGV[3]: seconds after which the frontier is forgotten unless a walker attaches, or 0. ARGV[4]: the generation that
-- this one replaces, or ''.
-- Returns: OK, or FOREIGN if a different database has a crawl with this id on this server.
local function is_damaged(key, kind)
  local found = redis.call('TYPE', key).ok
  return found ~= kind and found ~= 'none'
end
-- Other clients may have written into a frontier that is begun again, so its keys can be found only by name.
if ARGV[4] ~= '' and (is_damaged(KEYS[1], 'string') or is_damaged(counts, 'hash') or is_damaged(walkers, 'hash')
    or is_damaged(depths, 'zset') or is_damaged(queue, 'zset')) then
  for _, key in ipairs(redis.call('KEYS', base .. '*')) do redis.call('UNLINK', key) end
end
local state = state_of_generation()
-- A frontier with an expiry is unused: its crawl was not committed, or the frontier is about to be begun again.
if state ~= 'LOST' and redis.call('TTL', KEYS[1]) < 0 and redis.call('GET', KEYS[1]) ~= ARGV[4] then return { state } end
for _, member in ipairs(redis.call('ZRANGE', depths, 0, -1)) do
  redis.call('UNLINK', list_of(string.format('%d', tonumber(string.sub(member, 1, 12))), string.sub(member, 14)))
end
for _, host in ipairs(redis.call('ZRANGE', queue, 0, -1)) do redis.call('UNLINK', retries_of(host)) end
for _, walker in ipairs(redis.call('HKEYS', walkers)) do redis.call('UNLINK', held_by(walker), claimed_by(walker)) end
redis.call('UNLINK', counts, seen, processed, fates, targets, touched, queue, depths, claims, suspects, quarantine,
  busy, walkers, pages, redirected)
if ARGV[3] == '0' then
  redis.call('SET', KEYS[1], ARGV[1])
else
  redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[3])
end
redis.call('HSET', counts, 'opened', 0, 'settled', 0, 'evictions', evictions())
return { 'OK' }
