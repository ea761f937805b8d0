-- Put jobs that were popped back into their lines, because nobody leased them.
-- ARGV[2..]: ids.
-- Returns: OK, how many were put back.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local returned = 0
for at = 2, #ARGV do
  if redis.call('ZREM', processing, ARGV[at]) == 1 then
    local entry = redis.call('HGET', pending, ARGV[at])
    if entry then
      add(ARGV[at], entry)
      returned = returned + 1
    end
  end
end
if returned > 0 then wake() end
return { 'OK', returned }
