-- Add one URL that is not known.
-- ARGV[3]: host. ARGV[4]: depth (four hexadecimal digits). ARGV[5]: key. ARGV[6]: entry of the queue.
-- Returns: OK, 1 if the URL was new, 0 if it was known, or -1 if `add` has to decide because the URL was skipped
-- before.
local state = quick_state()
if state ~= 'OK' then return { state } end
if redis.call('HEXISTS', fates, ARGV[5]) == 1 then return { 'OK', -1 } end
local new = redis.call('SADD', seen, ARGV[5])
if new == 1 then
  push(ARGV[3], ARGV[4], { ARGV[6] })
  count('opened', 1)
end
return { 'OK', new }
