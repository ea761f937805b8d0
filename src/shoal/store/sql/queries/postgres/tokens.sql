-- name: lock_admin_tokens
-- The valid tokens of admins, locked until the transaction ends.
SELECT id FROM token
WHERE scopes LIKE '%admin%' AND revoked_at IS NULL AND coalesce(expires_at > shoal_now(), TRUE)
ORDER BY id FOR UPDATE;
