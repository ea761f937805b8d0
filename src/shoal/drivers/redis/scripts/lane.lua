-- The part that all scripts of the lanes share.
--
-- KEYS[1]: {shoal}:queue:tasks:generation. Every other key begins with the same `{shoal}:queue:tasks:`, so all keys are
-- in one slot of a cluster. ARGV[1]: the generation of the lanes in the database. The first element of every result is
-- OK, LOST (the server has no lanes, or has lost them) or FOREIGN (the lanes belong to a different database).
--
-- The jobs of one lane, kind and capability form a queue: `<kind>:<capability>`, or `<kind>:<capability>:node:<node>`.
-- A job is named by its id. Its entry is its rank, its queue and its place at its host, each on a separate line; the
-- place is empty, or the host, the rank in a form that sorts as text, and the id, separated by tabs.

local base = string.sub(KEYS[1], 1, -11)
local pending, processing, queues, wake_up = base .. 'pending', base .. 'processing', base .. 'lines', base .. 'wake'

local function state_of_generation()
  local found = redis.call('GET', KEYS[1])
  if found == ARGV[1] then return 'OK' end
  return found and 'FOREIGN' or 'LOST'
end

local function queue_key(name) return base .. name end
local function places_of(queue) return queue .. ':at_hosts' end
local function ready_of(queue) return queue .. ':hosts' end
local function later_of(queue) return queue .. ':hosts:later' end

-- Return the rank, the queue and the place of an entry.
local function read(entry)
  local first = string.find(entry, '\n', 1, true)
  local second = string.find(entry, '\n', first + 1, true)
  return string.sub(entry, 1, first - 1), string.sub(entry, first + 1, second - 1), string.sub(entry, second + 1)
end

local function now()
  local time = redis.call('TIME')
  return time[1] + time[2] / 1000000
end

-- Put jobs into their queues, and make their hosts ready, unless a host is waiting for its time.
local function add(ids, entries)
  local ranks, places, hosts, rows = {}, {}, {}, {}
  for index, id in ipairs(ids) do
    local rank, name, place = read(entries[index])
    rows[#rows + 1] = id
    rows[#rows + 1] = entries[index]
    if not ranks[name] then ranks[name], places[name], hosts[name] = {}, {}, {} end
    table.insert(ranks[name], rank)
    table.insert(ranks[name], id)
    if place ~= '' then
      table.insert(places[name], 0)
      table.insert(places[name], place)
      local host = string.sub(place, 1, string.find(place, '\t', 1, true) - 1)
      local best = hosts[name][host]
      if not best or tonumber(rank) < tonumber(best) then hosts[name][host] = rank end
    end
  end
  redis.call('HSET', pending, unpack(rows))
  for name, members in pairs(ranks) do
    local queue = queue_key(name)
    redis.call('ZADD', queue, unpack(members))
    redis.call('SADD', queues, name)
    if #places[name] > 0 then redis.call('ZADD', places_of(queue), unpack(places[name])) end
    for host, rank in pairs(hosts[name]) do
      if not redis.call('ZSCORE', later_of(queue), host) then redis.call('ZADD', ready_of(queue), 'LT', rank, host) end
    end
  end
end

-- Return whether everything that `add` writes for a job exists.
local function is_complete(id, entry)
  local _, name, place = read(entry)
  local queue = queue_key(name)
  if not redis.call('ZSCORE', queue, id) then return false end
  if place == '' then return true end
  local host = string.sub(place, 1, string.find(place, '\t', 1, true) - 1)
  if not redis.call('ZSCORE', places_of(queue), place) then return false end
  return redis.call('ZSCORE', ready_of(queue), host) or redis.call('ZSCORE', later_of(queue), host)
end

-- Take a job out of its queue.
local function remove(id, entry)
  local _, name, place = read(entry)
  local queue = queue_key(name)
  redis.call('ZREM', queue, id)
  if place ~= '' then redis.call('ZREM', places_of(queue), place) end
end

-- Return the rank of the best job at a host; nil if none waits there.
local function best_at(queue, host)
  local first = redis.call('ZRANGEBYLEX', places_of(queue), '[' .. host .. '\t', '(' .. host .. '\n', 'LIMIT', 0, 1)[1]
  if not first then return nil end
  local id = string.sub(first, #host + 19)
  local entry = redis.call('HGET', pending, id)
  return entry and read(entry) or '0'
end

-- Wake all processes that wait for jobs: they read this stream, and only its last entry matters.
local function wake()
  redis.call('XADD', wake_up, 'MAXLEN', 1, '*', 'jobs', '')
end
