-- name: notify
-- Send an empty notification. Part of a commit that does nothing else: it takes a lock of the whole server.
SELECT pg_notify(:channel, '');
