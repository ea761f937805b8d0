-- Read the number of pages of hosts in the crawl.
-- ARGV[3..]: hosts.
-- Returns: OK, a list with one number per host.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local given = {}
for at = 3, #ARGV do given[#given + 1] = redis.call('HGET', pages, ARGV[at]) or '0' end
return { 'OK', given }
