-- Give URLs to a walker, and set the time for looking at their hosts again.
-- ARGV[3]: the walker. ARGV[4]: the number of its last call. ARGV[5]: number of URLs (n). ARGV[6]: number of hosts (m).
-- Then n times: U (new) or T (tried), host, depth (of a new URL) or seq, entry or '', record.
-- Then m times: host, when to look at it again: a time, '' for the time at which its next URL is due, or 'x' to give up
-- the claim.
-- Returns: OK, the seq of each URL, or '' for a URL that a different walker has taken.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local walker, urls, hosts, taken = ARGV[3], tonumber(ARGV[5]), tonumber(ARGV[6]), {}
if not remembers(walker, ARGV[4]) then return { 'STALE' } end
for at = 7, 6 + 5 * urls, 5 do
  local what, host, where, entry, record = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local seq = ''
  if what == 'T' then
    if redis.call('ZREM', retries_of(host), where) + redis.call('ZREM', suspects, where) > 0 then seq = where end
  else
    local list = list_of(host, where)
    -- Mostly, this is the first entry, so no search is needed.
    if redis.call('LREM', list, 1, entry) == 1 then
      seq = where .. string.format('%010x', redis.call('HINCRBY', counts, 'seq', 1))
      redis.call('HSET', touched, seq, record)
      if redis.call('EXISTS', list) == 0 then redis.call('ZREM', depths, place(host, where)) end
    end
  end
  if seq ~= '' then
    redis.call('ZADD', held_by(walker), host, seq)
    redis.call('SADD', busy, string.sub(record, 1, 12))
  end
  taken[#taken + 1] = seq
end
for at = 7 + 5 * urls, #ARGV, 2 do
  local host, ready = ARGV[at], ARGV[at + 1]
  if ready == 'x' then
    if redis.call('HGET', claims, host) == walker then redis.call('HDEL', claims, host) end
    redis.call('SREM', claimed_by(walker), host)
  else
    if ready == '' then
      if #depths_of(host) > 0 then
        ready = now
      else
        ready = redis.call('ZRANGE', retries_of(host), 0, 0, 'WITHSCORES')[2]
      end
    end
    if ready then
      redis.call('ZADD', queue, ready, host)
      local last = redis.call('HGET', claims, host)
      if last and last ~= walker then redis.call('SREM', claimed_by(last), host) end
      redis.call('HSET', claims, host, walker)
      redis.call('SADD', claimed_by(walker), host)
    else
      redis.call('ZREM', queue, host)
      redis.call('HDEL', claims, host)
      redis.call('SREM', claimed_by(walker), host)
    end
  end
end
return { 'OK', taken }
