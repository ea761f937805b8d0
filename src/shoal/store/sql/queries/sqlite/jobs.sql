-- name: due_jobs
-- The due jobs of these lanes and kinds, best first. The write lock is held already: nobody else takes.
SELECT id FROM job
WHERE state = 'pending' AND lane IN (SELECT value FROM json_each(:lanes)) AND kind IN (SELECT value FROM json_each(:kinds))
      AND not_before <= shoal_now()
ORDER BY priority DESC, created_at, id
LIMIT :limit;

-- name: fence_job
-- Whether a grant still holds; the write lock keeps it so until the transaction ends.
SELECT 1 FROM job WHERE id = :id AND state = 'locked' AND lease_epoch = :epoch;

-- name: still_expired
-- Whether a grant is still locked and over.
SELECT 1 FROM job WHERE id = :id AND state = 'locked' AND lease_epoch = :epoch AND lease_until < shoal_now();
