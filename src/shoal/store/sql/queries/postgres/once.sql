-- name: prune_keys
-- Forget old keys, some at a time; those that somebody else forgets just now are left to them.
DELETE FROM request_key WHERE ctid = ANY (ARRAY
    (SELECT ctid FROM request_key WHERE created_at < shoal_now() - :age
     ORDER BY created_at LIMIT :limit FOR UPDATE SKIP LOCKED));
