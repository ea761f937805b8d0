-- Put jobs into their queues, or move them there. A job that is already in its queue is left alone.
-- ARGV[2]: 1 if this call repairs the lanes: then `pending` is not trusted, and jobs that are being leased are left
-- alone.
-- ARGV[3]: number of jobs (n). ARGV[4..3+n]: their ids. ARGV[4+n..]: their entries.
-- Returns: OK, the number of jobs that were put into a queue.
local state = state_of_generation()
if state ~= 'OK' then return { state } end
local repairs, jobs, ids, entries = ARGV[2] == '1', tonumber(ARGV[3]), {}, {}
local known = redis.call('HMGET', pending, unpack(ARGV, 4, 3 + jobs))
for index = 1, jobs do
  local id, entry, before = ARGV[3 + index], ARGV[3 + jobs + index], known[index]
  local wanted = true
  if before then
    local leasing = redis.call('ZSCORE', processing, id)
    if leasing and repairs then
      wanted = false
    elseif leasing then
      redis.call('ZREM', processing, id)
    elseif before == entry then
      wanted = repairs and not is_complete(id, entry)
    end
    if wanted then remove(id, before) end
  end
  if wanted then
    ids[#ids + 1] = id
    entries[#entries + 1] = entry
  end
end
if #ids > 0 then
  add(ids, entries)
  wake()
end
return { 'OK', #ids }
