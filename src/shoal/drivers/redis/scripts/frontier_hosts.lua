-- Find hosts that may be looked at now, the longest waiting first.
-- ARGV[3]: the walker. ARGV[4]: the maximum number of hosts. ARGV[5]: the maximum number of hosts of other walkers.
-- Returns: OK, hosts that are claimed by this walker or by nobody, hosts claimed by other walkers (for each host: the
-- host, the time at which its turn came, the walker that claimed it or '', the number of its pages), whether any URL
-- redirects (1 or 0).
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local ours, others, most, most_others, at = {}, {}, tonumber(ARGV[4]), tonumber(ARGV[5]), 0
while #ours < most do
  local found = redis.call('ZRANGEBYSCORE', queue, '-inf', now, 'WITHSCORES', 'LIMIT', at, 256)
  for index = 1, #found, 2 do
    local host = found[index]
    local claim = redis.call('HGET', claims, host) or ''
    local row = { host, found[index + 1], claim, redis.call('HGET', pages, host) or '0' }
    if claim == '' or claim == ARGV[3] then
      if #ours < most then ours[#ours + 1] = row end
    elseif #others < most_others then
      others[#others + 1] = row
    end
  end
  at = at + 256
  if #found < 512 or at > 8192 then break end
end
return { 'OK', ours, others, redis.call('EXISTS', targets) }
