-- name: notify
-- Send an empty notification, in a commit that does nothing else, because it takes a server-wide lock.
SELECT pg_notify(:channel, '');
