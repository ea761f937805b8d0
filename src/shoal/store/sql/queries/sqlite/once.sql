-- name: prune_keys
-- Forget old keys, some at a time.
DELETE FROM request_key WHERE rowid IN
    (SELECT rowid FROM request_key WHERE created_at < shoal_now() - :age ORDER BY created_at LIMIT :limit);
