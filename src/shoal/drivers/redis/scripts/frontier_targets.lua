-- Read the stored form of redirect targets.
-- ARGV[3..]: keys.
-- Returns: OK, a list of stored forms, with '' for a URL that is not a redirect target.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local found = {}
for at = 3, #ARGV do found[#found + 1] = redis.call('HGET', targets, ARGV[at]) or '' end
return { 'OK', found }
