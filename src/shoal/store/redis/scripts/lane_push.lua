-- Put jobs into their lines, or move them there. A job that is there already is left alone.
-- ARGV[2]: 1 if this repairs the lanes: then `pending` is not believed, and jobs that are being leased are left alone.
-- ARGV[3..]: id and entry of each job.
-- Returns: OK, how many were put into a line.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local repairs, added = ARGV[2] == '1', 0
for at = 3, #ARGV, 2 do
  local id, entry = ARGV[at], ARGV[at + 1]
  local known = redis.call('HGET', pending, id)
  local leasing = known and redis.call('ZSCORE', processing, id)
  local _, name = read(entry)
  local there = known == entry and (not repairs or redis.call('ZSCORE', line_of(name), id))
  if leasing and not repairs then
    redis.call('ZREM', processing, id)
    there = false
  end
  if not there and not (leasing and repairs) then
    if known then remove(id, known) end
    add(id, entry)
    added = added + 1
  end
end
if added > 0 then wake() end
return { 'OK', added }
