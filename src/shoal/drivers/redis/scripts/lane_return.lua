-- Put popped jobs back into their queues because nobody leased them.
-- ARGV[2..]: ids.
-- Returns: OK, how many were put back.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local ids, entries = {}, {}
for at = 2, #ARGV do
  if redis.call('ZREM', processing, ARGV[at]) == 1 then
    local entry = redis.call('HGET', pending, ARGV[at])
    if entry then
      ids[#ids + 1] = ARGV[at]
      entries[#entries + 1] = entry
    end
  end
end
if #ids > 0 then
  add(ids, entries)
  wake()
end
return { 'OK', #ids }
