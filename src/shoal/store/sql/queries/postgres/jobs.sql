-- name: due_jobs
-- The due jobs of one kind in one lane, best first, locked against other takers.
SELECT id FROM job
WHERE state = 'pending' AND due = 1 AND lane = :lane AND kind = :kind
ORDER BY priority DESC, line_at, id
LIMIT :limit
FOR UPDATE SKIP LOCKED;

-- name: fence_job
-- Whether a grant still holds; keeps it so until the transaction ends, without waiting for or blocking extensions.
SELECT 1 FROM job WHERE id = :id AND state = 'locked' AND lease_epoch = :epoch FOR KEY SHARE;

-- name: still_expired
-- Whether a grant is still locked and over, under the lock that the move needs.
SELECT 1 FROM job WHERE id = :id AND state = 'locked' AND lease_epoch = :epoch AND lease_until < shoal_now() FOR UPDATE;

-- name: make_due
-- Jobs whose time has come stand in line from now on.
UPDATE job SET due = 1
WHERE id IN (SELECT id FROM job WHERE state = 'pending' AND due = 0 AND not_before <= shoal_now()
             ORDER BY not_before LIMIT :limit FOR UPDATE SKIP LOCKED);

-- name: lock_job
-- Whether a grant is still locked, under the lock that a move needs.
SELECT 1 FROM job WHERE id = :id AND state = 'locked' AND lease_epoch = :epoch FOR UPDATE;
