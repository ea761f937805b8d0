-- The part that all scripts of the frontier share.
--
-- KEYS[1]: scan:{<crawl>}:generation. Every other key begins with the same `scan:{<crawl>}:`, so all keys of a crawl
-- are in one slot of a cluster. ARGV[1]: the generation of the crawl in the database; ARGV[2]: the time by the
-- database's clock, in microseconds. The first element of every result is OK, LOST (there is no frontier), FOREIGN (the
-- frontier belongs to a different database) or STALE (the server forgot writes of this walker).
--
-- A URL is named by the 12 bytes of its key. A record begins with that key and one byte of flags (1: the URL is being
-- redirected, 2: it is a suspect, 3: both); the rest of a record, and the entries of queues, are opaque.

local base = string.sub(KEYS[1], 1, -11)
local now = ARGV[2]
local counts, seen, processed = base .. 'counts', base .. 'seen_urls', base .. 'processed_urls'
local fates, targets, touched = base .. 'url_fates', base .. 'redirect_targets', base .. 'touched_urls'
local queue, depths, claims = base .. 'url_queue', base .. 'url_depths', base .. 'host_claims'
local suspects, quarantine, busy = base .. 'suspects', base .. 'quarantine', base .. 'busy_urls'
local walkers, pages = base .. 'walkers', base .. 'host_pages'
local redirected = base .. 'redirected_urls' -- the places of URLs that are being redirected, by key

local OPEN, FETCHED, QUARANTINED, VIA, SKIPPED = '0', '1', '3', '4', 16
-- Two sets of fates: skipped URLs with such a fate open again when they are found in a different way, or when a
-- redirect leads to them.
local reopening = { ['16'] = true, ['21'] = true, ['31'] = true }
local claimable = { ['16'] = true, ['21'] = true, ['31'] = true, ['17'] = true }

-- Return how many keys the server has evicted since it was started.
local function evictions()
  return string.match(redis.call('INFO', 'stats'), 'evicted_keys:(%d+)')
end

-- Compare only the generation. That is enough for single calls, which follow within half a second after a complete
-- check.
local function quick_state()
  local found = redis.call('GET', KEYS[1])
  if found ~= ARGV[1] then return found and 'FOREIGN' or 'LOST' end
  return 'OK'
end

local function state_of_generation()
  local state = quick_state()
  if state ~= 'OK' then return state end
  -- Evicted keys may have belonged to this crawl.
  local evicted = evictions()
  if evicted ~= '0' and evicted ~= redis.call('HGET', counts, 'evictions') then return 'LOST' end
  return 'OK'
end

local function count(field, change)
  if change ~= 0 then redis.call('HINCRBY', counts, field, change) end
end

-- Return all counters. Their version increases with every change, even after a restart that lost some changes.
local function totals()
  local time = redis.call('TIME')
  local version = time[1] * 1000000 + time[2]
  local last = tonumber(redis.call('HGET', counts, 'version') or '0')
  if version <= last then version = last + 1 end
  redis.call('HSET', counts, 'version', string.format('%.0f', version))
  return redis.call('HGETALL', counts)
end

local function list_of(host, depth) return base .. 'url_queue:' .. host .. ':' .. depth end
local function retries_of(host) return base .. 'retries:' .. host end

-- Let the walkers look at a host now or at a given time, unless they already will look at it earlier.
local function wake(host, at)
  local score = redis.call('ZSCORE', queue, host)
  -- If a frontier lost its index, old entries may be left.
  if not score then redis.call('UNLINK', retries_of(host)) end
  if not score or tonumber(score) > tonumber(at) then redis.call('ZADD', queue, at, host) end
end

local function held_by(walker) return base .. 'held:' .. walker end
local function claimed_by(walker) return base .. 'claimed:' .. walker end
-- Members sort by host, then by depth, because both have a fixed width.
local function place(host, depth) return string.format('%012d:', host) .. depth end

-- Append entries to the queue of a host and a depth.
local function push(host, depth, entries)
  if redis.call('ZADD', depths, 0, place(host, depth)) == 1 then redis.call('UNLINK', list_of(host, depth)) end
  redis.call('RPUSH', list_of(host, depth), unpack(entries))
  wake(host, now)
end

-- Return the depths at which URLs of a host wait, in their written form, lowest first.
local function depths_of(host)
  local prefix = string.format('%012d:', host)
  local found = {}
  for _, member in ipairs(redis.call('ZRANGEBYLEX', depths, '[' .. prefix, '(' .. string.format('%012d;', host))) do
    found[#found + 1] = string.sub(member, #prefix + 1)
  end
  return found
end

-- Put a record back, to be fetched not before a time.
local function put_back(seq, host, record, due)
  wake(host, now)
  local flags = string.sub(record, 13, 13)
  if flags == '2' or flags == '3' then
    redis.call('ZADD', suspects, due, seq)
  else
    redis.call('ZADD', retries_of(host), due, seq)
  end
  if flags == '0' or flags == '2' then redis.call('SREM', busy, string.sub(record, 1, 12)) end
end

-- Forget the URLs and claims of a walker; its URLs must have been put back before.
local function dismiss(walker)
  for _, host in ipairs(redis.call('SMEMBERS', claimed_by(walker))) do
    if redis.call('HGET', claims, host) == walker then redis.call('HDEL', claims, host) end
  end
  redis.call('DEL', claimed_by(walker), held_by(walker))
  redis.call('HDEL', walkers, walker)
end

-- Check that the server remembers the last call of a walker, and record the current call.
local function remembers(walker, turn)
  local last = redis.call('HGET', walkers, walker) or '0'
  if last ~= turn then return false end
  redis.call('PERSIST', KEYS[1])
  redis.call('HSET', walkers, walker, string.format('%d', tonumber(turn) + 1))
  return true
end
