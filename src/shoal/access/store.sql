-- name: insert_token
-- Store a new token, unless its id is taken.
INSERT INTO token (id, name, hash, scopes, made_by, created_at, expires_at, node_id)
VALUES (:id, :name, :hash, :scopes, :made_by, shoal_now(), shoal_now() + CAST(:ttl AS BIGINT), :node_id)
ON CONFLICT (id) DO NOTHING
RETURNING *, shoal_now() AS seen_at;

-- name: token
-- One token.
SELECT *, shoal_now() AS seen_at FROM token WHERE id = :id;

-- name: valid_token
-- One token, if it is neither revoked nor expired.
SELECT *, shoal_now() AS seen_at FROM token
WHERE id = :id AND revoked_at IS NULL AND coalesce(expires_at > shoal_now(), TRUE);

-- name: newest_tokens
-- Tokens with numbers before a number, newest first.
SELECT *, shoal_now() AS seen_at FROM token
WHERE number < coalesce(CAST(:before AS INTEGER), 2147483647)
ORDER BY number DESC LIMIT :limit;

-- name: any_token
-- Return whether there ever was a token.
SELECT 1 AS found FROM token LIMIT 1;

-- name: revoke_token
-- Revoke a token, unless it was revoked before.
UPDATE token SET revoked_at = shoal_now() WHERE id = :id AND revoked_at IS NULL;

-- name: mark_token_used
-- Record when a token was used, at most once per interval.
UPDATE token SET last_used_at = shoal_now() WHERE id = :id AND coalesce(last_used_at < shoal_now() - :every, TRUE);

-- name: lock_admin_tokens
-- The valid tokens of admins, locked until the transaction ends.
SELECT id FROM token
WHERE scopes LIKE '%admin%' AND revoked_at IS NULL AND coalesce(expires_at > shoal_now(), TRUE)
ORDER BY id FOR UPDATE;

-- name: ended_tokens
-- Return the tokens among these ids that were revoked or have expired.
SELECT id FROM token
WHERE id = ANY(:ids::text[]) AND (revoked_at IS NOT NULL OR coalesce(expires_at <= shoal_now(), FALSE));

-- name: expired_tokens
-- Tokens that were not revoked and have expired recently (within the last :ago microseconds).
SELECT id FROM token
WHERE expires_at <= shoal_now() AND expires_at > shoal_now() - CAST(:ago AS BIGINT) AND revoked_at IS NULL;
