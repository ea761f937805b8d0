-- name: drop_old_key
-- Delete one idempotency key if it has expired.
DELETE FROM request_key WHERE caller = :caller AND route = :route AND key = :key AND created_at < shoal_now() - :age;

-- name: keep_key
-- Store the idempotency key of a request, unless it is stored already; return the stored row. The update changes
-- nothing, but without it an existing row would not be returned.
INSERT INTO request_key (caller, route, key, digest, subject, created_at)
VALUES (:caller, :route, :key, :digest, :subject, shoal_now())
ON CONFLICT (caller, route, key) DO UPDATE SET key = excluded.key
RETURNING *;

-- name: answer_key
-- Store the first response to a request, unless a later request has taken the key in the meantime.
UPDATE request_key
SET status = coalesce(status, CAST(:status AS INTEGER)), answer = coalesce(answer, CAST(:answer AS TEXT)),
    location = CASE WHEN status IS NULL THEN CAST(:location AS TEXT) ELSE location END
WHERE caller = :caller AND route = :route AND key = :key AND subject = :subject
RETURNING *;

-- name: kept_key
-- One idempotency key, if it is used for this object.
SELECT * FROM request_key WHERE caller = :caller AND route = :route AND key = :key AND subject = :subject;

-- name: forget_key
-- Delete an idempotency key that has no response, unless a later request has taken the key in the meantime.
DELETE FROM request_key
WHERE caller = :caller AND route = :route AND key = :key AND subject = :subject AND status IS NULL;
