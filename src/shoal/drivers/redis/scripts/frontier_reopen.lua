-- Open closed URLs again, as if they had never been tried.
-- ARGV[3]: number of hosts (m). Then m times: host, number of its pages that no longer count.
-- Then for each URL: host, depth (four hexadecimal digits), the key followed by the entry of the queue.
-- Returns: OK, the number of URLs that were never open before, the number of URLs that had been closed, the counters.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local hosts, opened, requeued = tonumber(ARGV[3]), 0, 0
for at = 4, 3 + 2 * hosts, 2 do redis.call('HINCRBY', pages, ARGV[at], -tonumber(ARGV[at + 1])) end
for at = 4 + 2 * hosts, #ARGV, 3 do
  local host, depth, key = ARGV[at], ARGV[at + 1], string.sub(ARGV[at + 2], 1, 12)
  -- A URL that waits, or is taken, stays as it is.
  local is_closed = redis.call('HDEL', fates, key) + redis.call('SREM', processed, key) > 0
  local is_new = redis.call('SADD', seen, key) == 1
  if is_new or is_closed then
    -- The URL is requested directly, even if it failed as the redirect target of a different page.
    redis.call('HDEL', targets, key)
    push(host, depth, { string.sub(ARGV[at + 2], 13) })
  end
  if is_new then
    opened = opened + 1
  elseif is_closed then
    requeued = requeued + 1
  end
end
count('opened', opened)
count('settled', -requeued)
return { 'OK', opened, requeued, totals() }
