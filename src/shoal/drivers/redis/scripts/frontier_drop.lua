-- Forget every URL of a crawl. Open URLs count as settled. ARGV[3]: 1 to forget the crawl itself, too, else 0.
-- Returns: OK, how many URLs were forgotten, the counters.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local known = redis.call('SCARD', seen)
for _, member in ipairs(redis.call('ZRANGE', depths, 0, -1)) do
  redis.call('UNLINK', list_of(string.format('%d', tonumber(string.sub(member, 1, 12))), string.sub(member, 14)))
end
for _, host in ipairs(redis.call('ZRANGE', queue, 0, -1)) do redis.call('UNLINK', retries_of(host)) end
for _, walker in ipairs(redis.call('HKEYS', walkers)) do redis.call('UNLINK', held_by(walker), claimed_by(walker)) end
known = known + redis.call('HLEN', fates)
redis.call('UNLINK', seen, processed, fates, targets, touched, queue, depths, claims, suspects, quarantine, busy, walkers,
  pages, redirected)
redis.call('HSET', counts, 'settled', redis.call('HGET', counts, 'opened') or 0)
local last = totals()
if ARGV[3] == '1' then redis.call('UNLINK', KEYS[1], counts) end
return { 'OK', known, last }
