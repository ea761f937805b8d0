-- name: prune_keys
-- Delete expired idempotency keys in batches.
DELETE FROM request_key WHERE rowid IN
    (SELECT rowid FROM request_key WHERE created_at < shoal_now() - :age ORDER BY created_at LIMIT :limit);
