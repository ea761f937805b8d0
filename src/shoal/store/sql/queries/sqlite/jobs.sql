-- name: insert_jobs
-- Store pending jobs, but none whose dedupe key a live one has; `place` keeps the order of the batch in the line.
-- rows: id kind capability run_id payload lane dedupe_key scopes priority not_before max_attempts place ageing
INSERT INTO job (id, kind, capability, state, run_id, payload, lane, dedupe_key, scopes, priority, rank, not_before, due,
                 max_attempts, created_at, line_at)
SELECT :id, :kind, :capability, 'pending', :run_id, :payload, :lane, :dedupe_key, :scopes, :priority,
       t.now + :place - :priority * :ageing, coalesce(:not_before, t.now), CASE WHEN :not_before > t.now THEN 0 ELSE 1 END,
       :max_attempts, t.now, t.now + :place
FROM (SELECT shoal_now() AS now) AS t WHERE TRUE
ON CONFLICT (dedupe_key) WHERE dedupe_key IS NOT NULL AND finished_at IS NULL DO NOTHING;

-- name: live_by_keys
-- The live jobs that have these dedupe keys.
SELECT dedupe_key, id FROM job WHERE dedupe_key IN (SELECT value FROM json_each(:keys)) AND finished_at IS NULL;

-- name: lease_jobs
-- Grant due jobs: lane after lane, of the kinds and capabilities that are asked for the one whose first job ranks best, then
-- the next, up to :limit. Joined from left to right, and the jobs come in the order of their index.
UPDATE job
SET state = 'locked', state_reason = NULL, lease_epoch = lease_epoch + 1, lease_holder = :holder,
    lease_until = (SELECT shoal_now()) + :ttl, granted_at = (SELECT shoal_now()), offered_session = NULL, offered_until = NULL
WHERE rowid IN (
    SELECT j.rowid
    FROM (SELECT l.value AS lane, k.value AS kind, c.value AS capability,
                 (SELECT j.rank FROM job AS j
                  WHERE j.state = 'pending' AND j.due = 1 AND j.lane = l.value AND j.kind = k.value AND j.capability = c.value
                  ORDER BY j.rank, j.id LIMIT 1) AS head
          FROM json_each(:lanes) AS l CROSS JOIN json_each(:kinds) AS k CROSS JOIN json_each(:capabilities) AS c
          ORDER BY l.key, head LIMIT 1000) AS w
    CROSS JOIN job AS j INDEXED BY job_waiting
    WHERE w.head IS NOT NULL AND j.state = 'pending' AND j.due = 1 AND j.lane = w.lane AND j.kind = w.kind
          AND j.capability = w.capability
    LIMIT :limit)
RETURNING id, lease_epoch, kind, run_id, payload, attempts, max_attempts, crash_count, granted_at - created_at AS waited,
          scopes, lane, rank;

-- name: held_jobs
-- Those of these jobs that are locked.
SELECT j.id, j.lease_epoch, j.crash_count, j.scopes
FROM json_each(:ids) AS i CROSS JOIN job AS j ON j.id = i.value WHERE j.state = 'locked';

-- name: close_grants
-- Write how the grants of locked jobs ended.
INSERT INTO job_grant (job_id, epoch, holder, granted_at, ended_at, ended, error)
SELECT j.id, j.lease_epoch, j.lease_holder, j.granted_at, :now, :ended, :error
FROM json_each(:ids) AS i CROSS JOIN job AS j ON j.id = i.value WHERE TRUE
ON CONFLICT (job_id, epoch) DO UPDATE SET ended_at = excluded.ended_at, ended = excluded.ended, error = excluded.error;

-- name: end_jobs
-- Locked jobs that lost no worker are done.
UPDATE job
SET state = 'done', state_reason = :reason, lease_holder = NULL, lease_until = NULL, kill_at = NULL, finished_at = :now
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: move_jobs
-- End or return locked jobs in any way.
-- rows: id state reason error wait attempt crash drop_by back ageing now
UPDATE job
SET state = :state, state_reason = :reason, error = coalesce(:error, error), lease_holder = NULL, lease_until = NULL,
    kill_at = NULL,
    finished_at = CASE WHEN :state <> 'pending' THEN :now END,
    not_before = CASE WHEN :state = 'pending' THEN :now + :wait ELSE not_before END,
    due = CASE WHEN :state = 'pending' AND :wait > 0 THEN 0 ELSE 1 END,
    attempts = attempts + :attempt,
    crash_count = CASE WHEN (SELECT g.settled FROM job_grant AS g WHERE g.job_id = job.id AND g.epoch = job.lease_epoch) = 1
                       THEN :crash ELSE crash_count + :crash END,
    line_at = CASE WHEN :back = 1 THEN :now ELSE line_at END,
    priority = max(priority - :drop_by, 0),
    rank = CASE WHEN :back = 1 THEN :now ELSE line_at END - max(priority - :drop_by, 0) * :ageing
WHERE id = :id;

-- name: any_ripe
-- Whether the time of jobs that wait for one has come.
SELECT 1 FROM job WHERE state = 'pending' AND due = 0 AND not_before <= (SELECT shoal_now()) LIMIT 1;

-- name: extend_leases
-- Move the ends of leases that are still held, and tell which of them are to be killed.
-- rows: id epoch ttl
UPDATE job SET lease_until = shoal_now() + :ttl
WHERE id = :id AND state = 'locked' AND lease_epoch = :epoch
RETURNING id, lease_epoch AS epoch, kill_at <= shoal_now() AS kill;

-- name: fence_job
-- Whether a grant still holds; the write lock keeps it so until the transaction ends.
SELECT 1 FROM job WHERE id = :id AND state = 'locked' AND lease_epoch = :epoch;

-- name: still_expired
-- Whether a grant is still locked and over.
SELECT 1 FROM job WHERE id = :id AND state = 'locked' AND lease_epoch = :epoch AND lease_until < shoal_now();

-- name: make_due
-- Jobs whose time has come stand in line from now on.
UPDATE job SET due = 1
WHERE id IN (SELECT id FROM job WHERE state = 'pending' AND due = 0 AND not_before <= shoal_now()
             ORDER BY not_before LIMIT :limit);

-- name: lock_job
-- Whether a grant is still locked, under the lock that a move needs; the write lock is held already.
SELECT 1 FROM job WHERE id = :id AND state = 'locked' AND lease_epoch = :epoch;
