-- Read what is known about redirect targets.
-- ARGV[3..]: keys.
-- Returns: OK, for each URL its fate or '', its stored form as a redirect target or '', and its record (if the URL is
-- itself being redirected) or ''.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local found = {}
for at = 3, #ARGV do
  local key = ARGV[at]
  local fate = redis.call('HGET', fates, key)
  if not fate and redis.call('SISMEMBER', processed, key) == 1 then fate = FETCHED end
  if not fate and redis.call('SISMEMBER', seen, key) == 1 then fate = OPEN end
  local seq = redis.call('HGET', redirected, key)
  local record = seq and redis.call('HGET', touched, seq)
  found[#found + 1] = fate or ''
  found[#found + 1] = redis.call('HGET', targets, key) or ''
  found[#found + 1] = record and string.sub(record, 1, 12) == key and record or ''
end
return { 'OK', found }
