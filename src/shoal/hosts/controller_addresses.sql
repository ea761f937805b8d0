-- name: keep_listener
-- Announce for some more time that a controller listens at this address.
INSERT INTO listener (machine, host, port, until) VALUES (:machine, :host, :port, shoal_now() + :ttl)
ON CONFLICT (machine, host, port) DO UPDATE SET until = excluded.until;

-- name: prune_listeners
-- Delete the addresses of controllers that have not announced themselves for a long time, except rows that a controller
-- is updating right now.
DELETE FROM listener WHERE (machine, host, port) IN
    (SELECT l.machine, l.host, l.port FROM listener AS l WHERE l.until < shoal_now() FOR UPDATE SKIP LOCKED);

-- name: remove_listener
-- Delete the address of a controller that stops.
DELETE FROM listener WHERE machine = :machine AND host = :host AND port = :port;

-- name: all_listeners
-- Return the addresses at which controllers listen now.
SELECT machine, host, port FROM listener WHERE until >= shoal_now();
