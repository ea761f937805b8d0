-- name: insert_jobs
-- Store pending jobs, except those whose dedupe key belongs to a live job; `place` keeps the order of the batch.
-- rows: id kind capability host run_id payload lane dedupe_key scopes priority not_before max_attempts lock_ttl place ageing
INSERT INTO job (id, kind, capability, host, state, run_id, payload, lane, dedupe_key, scopes, priority, rank, not_before, due,
                 max_attempts, lock_ttl, created_at, line_at)
SELECT :id, :kind, :capability, :host, 'pending', :run_id, :payload, :lane, :dedupe_key, :scopes, :priority,
       t.now + :place - :priority * :ageing, coalesce(:not_before, t.now), CASE WHEN :not_before > t.now THEN 0 ELSE 1 END,
       :max_attempts, :lock_ttl, t.now, t.now + :place
FROM (SELECT shoal_now() AS now) AS t WHERE TRUE
ON CONFLICT (dedupe_key) WHERE dedupe_key IS NOT NULL AND finished_at IS NULL DO NOTHING;

-- name: insert_dispatched_jobs
-- Store pending jobs whose lane the dispatcher chose; some of them are offered to a node. A separate statement, because
-- more columns cost more time.
-- rows: id kind capability host run_id payload lane dedupe_key scopes priority not_before max_attempts lock_ttl place ageing session offer dispatch
INSERT INTO job (id, kind, capability, host, state, run_id, payload, lane, dedupe_key, scopes, priority, rank, not_before, due,
                 max_attempts, lock_ttl, created_at, line_at, offered_session, offered_until, dispatch)
SELECT :id, :kind, :capability, :host, 'pending', :run_id, :payload, :lane, :dedupe_key, :scopes, :priority,
       t.now + :place - :priority * :ageing, coalesce(:not_before, t.now), CASE WHEN :not_before > t.now THEN 0 ELSE 1 END,
       :max_attempts, :lock_ttl, t.now, t.now + :place, :session, t.now + :offer, :dispatch
FROM (SELECT shoal_now() AS now) AS t WHERE TRUE
ON CONFLICT (dedupe_key) WHERE dedupe_key IS NOT NULL AND finished_at IS NULL DO NOTHING;

-- name: live_by_keys
-- The live jobs that have these dedupe keys.
SELECT dedupe_key, id FROM job WHERE dedupe_key IN (SELECT value FROM json_each(:keys)) AND finished_at IS NULL;

-- name: lease_jobs
-- Grant due jobs, up to :limit: lane by lane, and within a lane first from the requested kind and capability whose
-- first job ranks best, then from the next. Joined from left to right, so that jobs come in index order.
UPDATE job
SET state = 'locked', state_reason = NULL, lease_epoch = lease_epoch + 1, lease_holder = :holder,
    lease_until = (SELECT shoal_now()) + CASE WHEN :by_job = 1 THEN coalesce(lock_ttl, :ttl) ELSE :ttl END,
    granted_at = (SELECT shoal_now()), offered_session = NULL, offered_until = NULL
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
          scopes, lane, rank, capability, priority, CASE WHEN :by_job = 1 THEN coalesce(lock_ttl, :ttl) ELSE :ttl END AS ttl;

-- name: held_jobs
-- Return the jobs among these that are locked, and the current time.
SELECT j.id, j.lease_epoch, j.crash_count, j.scopes, (SELECT shoal_now()) AS now
FROM json_each(:ids) AS i CROSS JOIN job AS j ON j.id = i.value WHERE j.state = 'locked';

-- name: close_grants
-- Record how the grants of locked jobs ended.
INSERT INTO job_grant (job_id, epoch, holder, granted_at, ended_at, ended, error)
SELECT j.id, j.lease_epoch, j.lease_holder, j.granted_at, :now, :ended, :error
FROM json_each(:ids) AS i CROSS JOIN job AS j ON j.id = i.value WHERE TRUE
ON CONFLICT (job_id, epoch) DO UPDATE SET ended_at = excluded.ended_at, ended = excluded.ended, error = excluded.error;

-- name: end_jobs
-- Mark locked jobs as done if they never lost a worker.
UPDATE job
SET state = 'done', state_reason = :reason, lease_holder = NULL, lease_until = NULL, kill_at = NULL, finished_at = :now
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: move_jobs
-- End or return locked jobs. A returned job of a private lane goes to the shared lane, because its offer is over.
-- rows: id state reason error wait attempt crash drop_by back unseen ageing now
UPDATE job
SET state = :state, state_reason = :reason, error = coalesce(:error, error), lease_holder = NULL, lease_until = NULL,
    kill_at = NULL, lease_epoch = lease_epoch - :unseen,
    finished_at = CASE WHEN :state <> 'pending' THEN :now END,
    not_before = CASE WHEN :state = 'pending' THEN :now + :wait ELSE not_before END,
    due = CASE WHEN :state = 'pending' AND :wait > 0 THEN 0 ELSE 1 END,
    lane = CASE WHEN :state = 'pending' AND lane LIKE 'node/%' THEN 'shared' ELSE lane END,
    attempts = attempts + :attempt,
    crash_count = CASE WHEN (SELECT g.settled FROM job_grant AS g WHERE g.job_id = job.id AND g.epoch = job.lease_epoch) = 1
                       THEN :crash ELSE crash_count + :crash END,
    line_at = CASE WHEN :back = 1 THEN :now ELSE line_at END,
    priority = max(priority - :drop_by, 0),
    rank = CASE WHEN :back = 1 THEN :now ELSE line_at END - max(priority - :drop_by, 0) * :ageing
WHERE id = :id;

-- name: any_due
-- Return whether jobs have become due.
SELECT 1 FROM job WHERE state = 'pending' AND due = 0 AND not_before <= (SELECT shoal_now()) LIMIT 1;

-- name: lane_entries
-- For the jobs among these that wait and are due, return where they wait.
SELECT j.id, j.lane, j.kind, j.capability, j.rank, j.host
FROM json_each(:ids) AS i CROSS JOIN job AS j ON j.id = i.value WHERE j.state = 'pending' AND +j.due = 1;

-- name: extend_leases
-- Extend leases that are still held, and return which jobs are to be killed.
-- rows: id epoch ttl
UPDATE job SET lease_until = shoal_now() + :ttl
WHERE id = :id AND state = 'locked' AND lease_epoch = :epoch
RETURNING id, lease_epoch AS epoch, kill_at <= shoal_now() AS kill;

-- name: fence_job
-- Return whether a grant is still valid; the write lock keeps it valid until the transaction ends.
SELECT 1 FROM job WHERE id = :id AND state = 'locked' AND lease_epoch = :epoch;

-- name: make_due
-- Mark jobs whose time has come as due.
UPDATE job SET due = 1
WHERE id IN (SELECT id FROM job WHERE state = 'pending' AND due = 0 AND not_before <= shoal_now()
             ORDER BY not_before LIMIT :limit)
RETURNING id, host;

-- name: lock_quota_keys
-- The write lock is held already, so no other transaction counts.
SELECT count(*) FROM json_each(:keys);

-- name: lock_limited_keys
-- Return the quota keys among these that have a limit. The write lock is held already, so no other transaction counts.
SELECT value AS scope, :waits IN (0, 1) AS locked FROM json_each(:keys)
WHERE value LIKE 'key:%' OR value IN (SELECT scope FROM quota);

-- name: delete_stale_job_seats
-- Delete the seats of jobs that are not locked.
DELETE FROM job_seat WHERE NOT EXISTS (SELECT 1 FROM job AS j WHERE j.id = job_seat.job_id AND j.state = 'locked');

-- name: insert_missing_job_seats
-- Insert missing seats for locked jobs with limited quota keys.
INSERT OR IGNORE INTO job_seat (scope, job_id)
SELECT q.scope, j.id FROM job AS j CROSS JOIN json_each(j.scopes) AS s CROSS JOIN quota AS q ON q.scope = s.value
WHERE j.state = 'locked' AND j.lease_until > 0 AND j.scopes IS NOT NULL;

-- name: count_job_seats
-- Return how many jobs count towards these quota keys, and their limits.
SELECT i.value AS scope, (SELECT count(*) FROM job_seat AS s WHERE s.scope = i.value) AS taken,
       (SELECT q.most FROM quota AS q WHERE q.scope = i.value) AS most
FROM json_each(:keys) AS i;

-- name: delete_job_seats
-- Delete the seats of these jobs; return their quota keys.
DELETE FROM job_seat WHERE job_id IN (SELECT value FROM json_each(:ids)) RETURNING scope;

-- name: insert_job_seats
-- Insert seats for jobs.
-- rows: scope job_id
INSERT OR IGNORE INTO job_seat (scope, job_id) VALUES (:scope, :job_id);

-- name: park_jobs
-- Take back grants that no worker has seen, because their quota is full, and park the jobs. The offers to nodes are
-- over, so these jobs are parked for every worker.
-- rows: id scope
UPDATE job
SET state = 'pending', state_reason = 'quota', lease_epoch = lease_epoch - 1, lease_holder = NULL, lease_until = NULL,
    granted_at = NULL, due = 2, parked = :scope, lane = CASE WHEN lane LIKE 'node/%' THEN 'shared' ELSE lane END
WHERE id = :id;

-- name: rank_ahead
-- Return the rank of the job at the given position of a queue, if the queue is that long.
SELECT rank FROM job
WHERE state = 'pending' AND due = 1 AND lane = :lane AND kind = :kind AND capability = :capability
ORDER BY rank, id LIMIT 1 OFFSET :ahead;

-- name: park_ahead
-- Park the jobs at the head of a queue whose quota key is full, too.
UPDATE job SET state_reason = 'quota', due = 2, parked = :scope
WHERE rowid IN (SELECT rowid FROM job INDEXED BY job_waiting
                WHERE state = 'pending' AND due = 1 AND lane = :lane AND kind = :kind AND capability = :capability
                      AND rank <= :rank AND instr(scopes, :needle) > 0
                ORDER BY rank, id LIMIT :limit)
RETURNING id;

-- name: unpark_jobs
-- Unpark the best parked jobs of a quota key.
UPDATE job SET due = 1, parked = NULL, state_reason = NULL
WHERE rowid IN (SELECT rowid FROM job WHERE state = 'pending' AND due = 2 AND parked = :scope ORDER BY rank, id LIMIT :limit)
RETURNING id, host;

-- name: give_up_offers
-- Move jobs that were offered to a node and not taken in time to the shared lane.
UPDATE job SET lane = :lane, offered_session = NULL, offered_until = NULL
WHERE rowid IN (SELECT rowid FROM job WHERE offered_until < shoal_now() AND offered_until IS NOT NULL
                ORDER BY offered_until LIMIT :limit)
      AND state = 'pending'
RETURNING id, host, dispatch;

-- name: return_lane
-- Move the waiting jobs of a lane to the shared one.
UPDATE job SET lane = :shared, offered_session = NULL, offered_until = NULL
WHERE rowid IN (SELECT rowid FROM job WHERE state = 'pending' AND due = 1 AND lane = :lane)
      AND state = 'pending'
RETURNING id, host;

-- name: retry_jobs
-- Queue dead letters again as if they were new, unless a live job has their dedupe key.
UPDATE job
SET state = 'pending', state_reason = 'retried', attempts = 0, crash_count = 0, finished_at = NULL, due = 1, parked = NULL,
    not_before = (SELECT shoal_now()), line_at = (SELECT shoal_now()),
    rank = (SELECT shoal_now()) - priority * :ageing,
    lane = CASE WHEN lane LIKE 'node/%' THEN 'shared' ELSE lane END
WHERE id IN (SELECT value FROM json_each(:ids)) AND state IN ('failed', 'expired')
      AND NOT EXISTS (SELECT 1 FROM job AS o WHERE o.dedupe_key = job.dedupe_key AND o.finished_at IS NULL)
RETURNING id, host;

-- name: lock_jobs
-- Return these jobs. The write lock is held already.
SELECT j.id FROM json_each(:ids) AS i CROSS JOIN job AS j ON j.id = i.value;

-- name: lock_expired
-- Return the grants among these that are still locked and have expired. The write lock is held already.
SELECT j.id FROM json_each(:ids) AS i CROSS JOIN job AS j ON j.id = i.value
WHERE j.state = 'locked' AND j.lease_until < (SELECT shoal_now())
      AND j.lease_epoch = (SELECT e.value FROM json_each(:epochs) AS e WHERE e.key = i.key)
ORDER BY j.id;

-- name: lost_jobs
-- Return these jobs with what is needed to return them to the queue.
SELECT j.id, j.kind, j.run_id, j.lease_epoch AS epoch, j.attempts, j.max_attempts, j.crash_count, j.lease_holder,
       CASE WHEN j.lock_ttl IS NOT NULL THEN j.max_attempts - 1 END AS max_retry,
       (SELECT g.settled FROM job_grant AS g WHERE g.job_id = j.id AND g.epoch = j.lease_epoch) AS settled
FROM json_each(:ids) AS i CROSS JOIN job AS j ON j.id = i.value WHERE j.state = 'locked'
ORDER BY j.id;

-- name: end_of_purge
-- Among the jobs that ended between two times, skip :skip jobs and return the end time of the next job, if there is
-- one.
SELECT finished_at FROM job WHERE finished_at > :after AND finished_at < :before
ORDER BY finished_at LIMIT 1 OFFSET :skip;

-- name: purge_jobs
-- Remove jobs that ended in a period in one of these states, except jobs of a group that is still open. `kind`: NULL
-- for any.
DELETE FROM job
WHERE rowid IN (SELECT rowid FROM job INDEXED BY job_finished
                WHERE finished_at > :after AND finished_at <= :until AND state IN (SELECT value FROM json_each(:states))
                      AND kind NOT IN (SELECT value FROM json_each(:spared)) AND (:kind IS NULL OR kind = :kind)
                      AND NOT EXISTS (SELECT 1 FROM job_group AS g WHERE g.id = job.run_id AND g.state = 'open'))
RETURNING id;

-- name: purge_dead
-- Remove dead letters that ended before a time, except jobs of a group that is still open. `kind`: NULL for any.
DELETE FROM job
WHERE rowid IN (SELECT rowid FROM job INDEXED BY job_dead
                WHERE state IN ('failed', 'expired') AND finished_at < :before
                      AND state IN (SELECT value FROM json_each(:states))
                      AND kind NOT IN (SELECT value FROM json_each(:spared)) AND (:kind IS NULL OR kind = :kind)
                      AND NOT EXISTS (SELECT 1 FROM job_group AS g WHERE g.id = job.run_id AND g.state = 'open')
                ORDER BY id LIMIT :limit)
RETURNING id;

-- name: purge_grants
-- Remove the history of jobs that are gone.
DELETE FROM job_grant WHERE job_id IN (SELECT value FROM json_each(:ids));

-- name: newest_locked
-- Locked jobs that match and are older than a given job, newest first.
SELECT id, kind, capability, state, state_reason, run_id, payload, lane, dedupe_key, scopes, parked, priority, not_before, due,
       attempts, max_attempts, crash_count, lease_epoch, lease_holder, lease_until, granted_at, kill_at, error, created_at,
       line_at, finished_at
FROM job INDEXED BY job_leased
WHERE state = 'locked' AND lease_until > 0 AND id < coalesce(CAST(:before AS TEXT), (SELECT max(id) FROM job) || '0')
      AND (CAST(:state AS TEXT) IS NULL OR state = :state) AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind)
      AND (CAST(:lane AS TEXT) IS NULL OR lane = :lane)
ORDER BY id DESC
LIMIT :limit;

-- name: cancel_waiting_jobs
-- Cancel the pending jobs of a run.
UPDATE job SET state = 'cancelled', state_reason = :reason, finished_at = shoal_now(), offered_session = NULL, offered_until = NULL
WHERE run_id = :run_id AND state = 'pending'
RETURNING id;

-- name: kill_jobs_of_run
-- Ask workers to kill the leased jobs of a run, after a grace period.
UPDATE job SET kill_at = shoal_now() + :grace
WHERE run_id = :run_id AND finished_at IS NULL AND CASE WHEN state = 'locked' THEN TRUE ELSE FALSE END
      AND (kill_at IS NULL OR kill_at > shoal_now() + :grace);

-- name: set_priority_of_run
-- Change the priority of the jobs of a run that have not ended.
UPDATE job SET priority = CAST(:priority AS SMALLINT), rank = line_at - CAST(:priority AS SMALLINT) * CAST(:ageing AS BIGINT)
WHERE run_id = :run_id AND finished_at IS NULL
RETURNING id;

-- name: beat_job
-- Extend the lease of a bot, if the owner matches, up to :longest after the grant, or to the job's own term if that is
-- longer; return how long the lease lasts now, whether the job is cancelled, and the lease holder.
UPDATE job
SET lease_until = min(shoal_now() + coalesce(lock_ttl, CAST(:ttl AS BIGINT)),
                      granted_at + max(coalesce(lock_ttl, :ttl), CAST(:longest AS BIGINT)))
WHERE id = :id AND lease_epoch = :epoch AND CASE WHEN state = 'locked' THEN TRUE ELSE FALSE END
      AND substr(lease_holder, 1, length(CAST(:owner AS TEXT))) = CAST(:owner AS TEXT)
      AND granted_at + max(coalesce(lock_ttl, :ttl), :longest) > shoal_now()
RETURNING min(coalesce(lock_ttl, :ttl), granted_at + max(coalesce(lock_ttl, :ttl), :longest) - shoal_now()) AS ttl,
          kill_at <= shoal_now() AS cancelled, lease_holder AS holder;
