-- name: keep_listener
-- A controller listens here for some more time.
INSERT INTO listener (machine, host, port, until) VALUES (:machine, :host, :port, shoal_now() + :ttl)
ON CONFLICT (machine, host, port) DO UPDATE SET until = excluded.until;

-- name: prune_listeners
-- Forget controllers that were not heard of for long.
DELETE FROM listener WHERE until < shoal_now();

-- name: remove_listener
-- A controller stops.
DELETE FROM listener WHERE machine = :machine AND host = :host AND port = :port;

-- name: all_listeners
-- Where controllers listen now.
SELECT machine, host, port FROM listener WHERE until >= shoal_now();
