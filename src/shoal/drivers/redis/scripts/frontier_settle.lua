-- Settle URLs that a walker holds, or put them back.
-- ARGV[3]: the walker, as <job>:<epoch>. ARGV[4]: the number of its last call.
-- ARGV[5..]: for each URL: its place (seq), what to do (C: close, R: put back, Q: quarantine), the host at which it
-- waits from now on, its record, the time before which it must not be fetched, its fate, the host towards whose pages
-- it counts or '', the key of the redirect target that ends with this URL or '', the fate of that target or ''.
-- Returns: OK, the places of the URLs that were still the walker's and are closed, a list of fates of targets that
-- are skipped after all, the counters.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local walker = ARGV[3]
if not remembers(walker, ARGV[4]) then return { 'STALE' } end
local closed, skipped, settled = {}, {}, 0
for at = 5, #ARGV, 9 do
  local seq, what, host, record, due = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local fate, page_host, target, target_fate = ARGV[at + 5], ARGV[at + 6], ARGV[at + 7], ARGV[at + 8]
  if redis.call('ZREM', held_by(walker), seq) == 1 then
    if what == 'R' then
      redis.call('HSET', touched, seq, record)
      put_back(seq, host, record, due)
      local flags = string.sub(record, 13, 13)
      if flags == '1' or flags == '3' then redis.call('HSET', redirected, string.sub(record, 1, 12), seq) end
    else
      local key = string.sub(record, 1, 12)
      redis.call('HDEL', redirected, key)
      redis.call('SREM', busy, key)
      if what == 'Q' then
        redis.call('HSET', touched, seq, record)
        redis.call('ZADD', quarantine, host, seq)
      else
        redis.call('HDEL', touched, seq)
      end
      if fate == FETCHED then
        redis.call('SADD', processed, key)
      else
        redis.call('HSET', fates, key, fate)
        if tonumber(fate) >= SKIPPED then count('skip:' .. fate, 1) end
      end
      if page_host ~= '' then redis.call('HINCRBY', pages, page_host, 1) end
      settled = settled + 1
      closed[#closed + 1] = seq
      local stored = target ~= '' and redis.call('HGET', targets, target)
      if stored and target_fate == '' then
        redis.call('HDEL', targets, target)
      elseif stored then
        redis.call('HSET', targets, target, target_fate .. string.sub(stored, 3))
        local plain = string.format('%d', tonumber(target_fate))
        if redis.call('HEXISTS', fates, target) == 1 then
          redis.call('HSET', fates, target, plain)
          if tonumber(target_fate) >= SKIPPED then
            count('skip:' .. plain, 1)
            skipped[#skipped + 1] = plain
          end
        end
      end
    end
  end
end
count('settled', settled)
return { 'OK', closed, skipped, totals() }
