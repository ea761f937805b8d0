-- Settle URLs that a walker has fetched, and give it the next URL if that is the URL that the walker expects.
-- ARGV[3]: the walker. ARGV[4]: the number of its last call. ARGV[5]: number of URLs to settle (n).
-- Then n times: seq, key. Then the expected URL: host or '', depth, entry, record.
-- Returns: OK, whether the walker is known with that number (1 or 0; then nothing is done), the seq of the URL or '', and
-- host, depth and entry of the URL that comes next. All three are '' if no URL can be taken without asking the
-- database: no URL is ready, or the next one was taken before, redirects, or is at a host that a different walker has
-- claimed.
local state = quick_state()
if state ~= 'OK' then return { state } end
local walker, size = ARGV[3], tonumber(ARGV[5])
-- A walker that lost its lease is no longer known: its URLs were put back by a different process.
if redis.call('HGET', walkers, walker) ~= ARGV[4] then return { 'OK', 0, '', '', '', '' } end
remembers(walker, ARGV[4])

local settled = 0
for at = 6, 5 + 2 * size, 2 do
  if redis.call('ZREM', held_by(walker), ARGV[at]) == 1 then
    redis.call('SREM', busy, ARGV[at + 1])
    redis.call('HDEL', touched, ARGV[at])
    redis.call('SADD', processed, ARGV[at + 1])
    settled = settled + 1
  end
end
count('settled', settled)

local function first()
  if redis.call('EXISTS', suspects, targets) > 0 then return '', '', '' end
  local host = redis.call('ZRANGEBYSCORE', queue, '-inf', now, 'LIMIT', 0, 1)[1]
  if not host or redis.call('HEXISTS', claims, host) == 1 or redis.call('EXISTS', retries_of(host)) == 1 then
    return '', '', ''
  end
  local depth = depths_of(host)[1]
  local entry = depth and redis.call('LINDEX', list_of(host, depth), 0)
  if not entry then return '', '', '' end
  return host, depth, entry
end

local seq, host, depth, entry = '', first()
local expected = 6 + 2 * size
if host ~= '' and host == ARGV[expected] and depth == ARGV[expected + 1] and entry == ARGV[expected + 2] then
  local record = ARGV[expected + 3]
  seq = depth .. string.format('%010x', redis.call('HINCRBY', counts, 'seq', 1))
  redis.call('LPOP', list_of(host, depth))
  if redis.call('EXISTS', list_of(host, depth)) == 0 then redis.call('ZREM', depths, place(host, depth)) end
  redis.call('HSET', touched, seq, record)
  redis.call('ZADD', held_by(walker), host, seq)
  redis.call('SADD', busy, string.sub(record, 1, 12))
  if #depths_of(host) > 0 then redis.call('ZADD', queue, now, host) else redis.call('ZREM', queue, host) end
  host, depth, entry = first()
end
return { 'OK', 1, seq, host, depth, entry }
