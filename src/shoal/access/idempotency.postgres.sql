-- name: prune_keys
-- Delete expired idempotency keys in batches; rows that another commit is deleting are skipped.
DELETE FROM request_key WHERE ctid = ANY (ARRAY
    (SELECT ctid FROM request_key WHERE created_at < shoal_now() - :age
     ORDER BY created_at LIMIT :limit FOR UPDATE SKIP LOCKED));
