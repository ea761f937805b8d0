-- name: lease_job
-- Grant one job by its id, if it is pending.
UPDATE job
SET state = 'locked', state_reason = NULL, lease_epoch = lease_epoch + 1, lease_holder = :holder,
    lease_until = shoal_now() + :ttl, granted_at = shoal_now(), offered_session = NULL, offered_until = NULL, due = 1,
    parked = NULL
WHERE id = :id AND state = 'pending'
RETURNING id, lease_epoch, kind, run_id, payload, attempts, max_attempts, crash_count, shoal_now() - created_at AS waited,
          scopes;

-- name: lane_generation
-- Return the generation of the lanes that a different server (such as Redis) carries, if there are any.
SELECT id FROM lane_generation WHERE one = 1;

-- name: begin_lanes
-- Return the generation of the lanes that a different server carries; the first call sets the generation.
INSERT INTO lane_generation (one, id) VALUES (1, :id) ON CONFLICT (one) DO UPDATE SET one = 1 RETURNING id;

-- name: forget_lanes
-- Forget the generation of the lanes that a different server carried.
DELETE FROM lane_generation WHERE one = 1;

-- name: waiting_jobs_after
-- Return waiting jobs that are due, in the order of their lanes and ranks, after a given job.
SELECT id, lane, kind, capability, rank, host FROM job
WHERE state = 'pending' AND due = 1
      AND (lane, kind, capability, rank, id)
          > (CAST(:lane AS TEXT), CAST(:kind AS TEXT), CAST(:capability AS TEXT), CAST(:rank AS BIGINT), CAST(:id AS TEXT))
ORDER BY lane, kind, capability, rank, id
LIMIT :limit;

-- name: depth_up_to
-- Return how many due jobs wait in a lane, up to a maximum.
SELECT count(*) FROM (SELECT 1 FROM job WHERE state = 'pending' AND due = 1 AND lane = :lane LIMIT :most) AS found;

-- name: kind_waits
-- Return whether a job of a kind waits, including one that is due but not yet marked as due.
SELECT 1 FROM job WHERE state = 'pending' AND due = 1 AND lane = :lane AND kind = :kind
UNION ALL
SELECT 1 FROM (SELECT 1 FROM job WHERE state = 'pending' AND due = 0 AND not_before <= shoal_now() AND lane = :lane
                                      AND kind = :kind ORDER BY not_before LIMIT 1) AS found
LIMIT 1;

-- name: jobs_of_holder
-- The locked jobs of one holder.
SELECT id, lease_epoch, kind, run_id, payload, attempts, max_attempts, crash_count, 0 AS waited
FROM job WHERE state = 'locked' AND lease_until > 0 AND lease_holder = :holder;

-- name: jobs_of_process
-- The locked jobs of a process and of its children, whose names begin with the name of the process. Reads every locked
-- job.
SELECT id, lease_epoch, kind, run_id, payload, attempts, max_attempts, crash_count, 0 AS waited
FROM job WHERE state = 'locked' AND lease_until > 0
      AND substr(lease_holder || '/', 1, length(CAST(:holder AS TEXT)) + 1) = CAST(:holder AS TEXT) || '/';

-- name: job_dispatch
-- Return where a job waits, to which session it is offered and until when, and why it was dispatched there.
SELECT lane, offered_session, offered_until, dispatch FROM job WHERE id = :id;

-- name: was_cancelled
-- Return the holder of a grant if the grant belonged to this owner and ended because its job was cancelled.
SELECT holder FROM job_grant
WHERE job_id = :id AND epoch = :epoch AND ended = 'cancelled'
      AND substr(holder, 1, length(CAST(:owner AS TEXT))) = CAST(:owner AS TEXT);

-- name: held_by_owner
-- Return how many jobs an owner holds, under any label.
SELECT count(*) FROM job
WHERE state = 'locked' AND lease_until > 0
      AND substr(lease_holder, 1, length(CAST(:owner AS TEXT))) = CAST(:owner AS TEXT);

-- name: mark_grant_settled
-- Record that this grant has settled a URL. The record is not in the job's row, so that heartbeats do not wait for this
-- commit.
INSERT INTO job_grant (job_id, epoch, holder, granted_at, settled)
SELECT j.id, j.lease_epoch, j.lease_holder, j.granted_at, 1 FROM job AS j
WHERE j.id = :job_id AND j.lease_epoch = :epoch AND CASE WHEN j.state = 'locked' THEN TRUE ELSE FALSE END
      AND NOT EXISTS (SELECT 1 FROM job_grant AS g WHERE g.job_id = :job_id AND g.epoch = :epoch AND g.settled = 1)
ON CONFLICT (job_id, epoch) DO UPDATE SET settled = 1;

-- name: set_attempts
-- Change the maximum number of attempts of a job, under its lease.
UPDATE job SET max_attempts = :attempts WHERE id = :job_id AND lease_epoch = :epoch AND attempts < :attempts;

-- name: note_grant
-- Record the process that works on a grant.
INSERT INTO job_grant (job_id, epoch, holder, granted_at, node, pid, config)
SELECT j.id, j.lease_epoch, j.lease_holder, j.granted_at, :node, :pid, :config FROM job AS j
WHERE j.id = :job_id AND j.lease_epoch = :epoch AND CASE WHEN j.state = 'locked' THEN TRUE ELSE FALSE END
ON CONFLICT (job_id, epoch) DO UPDATE SET node = excluded.node, pid = excluded.pid, config = excluded.config;

-- name: note_past_grant
-- Record the process that worked on a grant, if the job ended before the process was recorded.
UPDATE job_grant SET node = :node, pid = :pid, config = :config
WHERE job_id = :job_id AND epoch = :epoch AND pid IS NULL;

-- name: grants_of_job
-- Return the history of a job, oldest grant first; a current grant without a history row is taken from the job's row.
SELECT epoch, holder, granted_at, settled, ended_at, ended, error, node, pid, config
FROM job_grant WHERE job_id = :job_id
UNION ALL
SELECT j.lease_epoch, j.lease_holder, j.granted_at, 0, NULL, NULL, NULL, NULL, NULL, NULL FROM job AS j
WHERE j.id = :job_id AND CASE WHEN j.state = 'locked' THEN TRUE ELSE FALSE END
      AND NOT EXISTS (SELECT 1 FROM job_grant AS g WHERE g.job_id = j.id AND g.epoch = j.lease_epoch)
ORDER BY epoch;

-- name: other_run_waits
-- Return whether a job of a different run has waited for a while and would be next if this job stepped back. Runs of
-- all kinds share the slots of a worker; page jobs have their own.
SELECT 1 FROM (
    SELECT 1 FROM job AS other
    WHERE other.state = 'pending' AND other.due = 1 AND other.lane = (SELECT mine.lane FROM job AS mine WHERE mine.id = :id)
          AND other.kind = 'crawl' AND other.capability = (SELECT mine.capability FROM job AS mine WHERE mine.id = :id)
          AND other.rank <= shoal_now() - (SELECT mine.priority FROM job AS mine WHERE mine.id = :id) * CAST(:ageing AS BIGINT)
          AND coalesce(other.run_id, '') <> (SELECT mine.run_id FROM job AS mine WHERE mine.id = :id)
          AND other.line_at < shoal_now() - :min_wait
    ORDER BY other.rank, other.id LIMIT 1) AS found
UNION ALL
SELECT 1 FROM (
    SELECT 1 FROM job AS other
    WHERE other.state = 'pending' AND other.due = 1 AND other.lane = (SELECT mine.lane FROM job AS mine WHERE mine.id = :id)
          AND other.kind = 'analysis' AND other.capability = (SELECT mine.capability FROM job AS mine WHERE mine.id = :id)
          AND other.rank <= shoal_now() - (SELECT mine.priority FROM job AS mine WHERE mine.id = :id) * CAST(:ageing AS BIGINT)
          AND coalesce(other.run_id, '') <> (SELECT mine.run_id FROM job AS mine WHERE mine.id = :id)
          AND other.line_at < shoal_now() - :min_wait
    ORDER BY other.rank, other.id LIMIT 1) AS found
LIMIT 1;

-- name: expired_jobs
-- Locked jobs whose lease ran out, oldest first.
SELECT id, kind, run_id, lease_epoch AS epoch, attempts, max_attempts, crash_count, lease_holder,
       CASE WHEN lock_ttl IS NOT NULL THEN max_attempts - 1 END AS max_retry,
       (SELECT g.settled FROM job_grant AS g WHERE g.job_id = job.id AND g.epoch = job.lease_epoch) AS settled
FROM job
WHERE state = 'locked' AND lease_until < shoal_now() AND (CAST(:bots AS INTEGER) = 1 OR lease_holder NOT LIKE 'bot/%')
ORDER BY lease_until
LIMIT :limit;

-- name: freshest_lease
-- Return the remaining time of the node lease that ends last.
SELECT lease_until - shoal_now() AS remaining FROM job
WHERE state = 'locked' AND lease_until > 0 AND lease_holder NOT LIKE 'bot/%'
ORDER BY lease_until DESC
LIMIT 1;

-- name: job
-- One job.
SELECT id, kind, capability, state, state_reason, run_id, payload, lane, dedupe_key, scopes, parked, priority, not_before, due,
       attempts, max_attempts, crash_count, lease_epoch, lease_holder, lease_until, granted_at, kill_at, error, created_at,
       line_at, finished_at
FROM job WHERE id = :id;

-- name: jobs_of_run
-- The jobs of a run, oldest first.
SELECT id, kind, capability, state, state_reason, run_id, payload, lane, dedupe_key, scopes, parked, priority, not_before, due,
       attempts, max_attempts, crash_count, lease_epoch, lease_holder, lease_until, granted_at, kill_at, error, created_at,
       line_at, finished_at
FROM job WHERE run_id = :run_id ORDER BY created_at, id;

-- name: live_jobs_of_run
-- Return how many of a run's jobs are pending, and how many are locked.
SELECT count(CASE WHEN state = 'pending' THEN 1 END) AS pending, count(CASE WHEN state = 'locked' THEN 1 END) AS locked
FROM job WHERE run_id = :run_id AND finished_at IS NULL;

-- name: newest_jobs
-- Return jobs that match and are older than a given job, newest first, among the next :scan jobs. Without a given job,
-- start from the newest: no text sorts after all others in every collation, but a prefix of the highest character does.
SELECT id, kind, capability, state, state_reason, run_id, payload, lane, dedupe_key, scopes, parked, priority, not_before, due,
       attempts, max_attempts, crash_count, lease_epoch, lease_holder, lease_until, granted_at, kill_at, error, created_at,
       line_at, finished_at
FROM (SELECT * FROM job WHERE id < coalesce(CAST(:before AS TEXT), (SELECT id FROM job ORDER BY id DESC LIMIT 1) || '0')
      ORDER BY id DESC LIMIT :scan) AS j
WHERE (CAST(:state AS TEXT) IS NULL OR state = :state) AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind)
      AND (CAST(:lane AS TEXT) IS NULL OR lane = :lane)
ORDER BY id DESC
LIMIT :limit;

-- name: end_of_scan
-- Return where `newest_jobs` stops scanning.
SELECT count(*) AS count, min(id) AS last
FROM (SELECT id FROM job WHERE id < coalesce(CAST(:before AS TEXT), (SELECT id FROM job ORDER BY id DESC LIMIT 1) || '0')
      ORDER BY id DESC LIMIT :scan) AS j;

-- name: newest_of_run
-- The jobs of a run that match and are older than a given job, newest first.
SELECT id, kind, capability, state, state_reason, run_id, payload, lane, dedupe_key, scopes, parked, priority, not_before, due,
       attempts, max_attempts, crash_count, lease_epoch, lease_holder, lease_until, granted_at, kill_at, error, created_at,
       line_at, finished_at
FROM job
WHERE run_id = :run_id AND id < coalesce(CAST(:before AS TEXT), (SELECT id FROM job ORDER BY id DESC LIMIT 1) || '0')
      AND (CAST(:state AS TEXT) IS NULL OR state = :state) AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind)
      AND (CAST(:lane AS TEXT) IS NULL OR lane = :lane)
ORDER BY id DESC
LIMIT :limit;

-- name: newest_dead
-- Dead letters that match and are older than a given job, newest first.
SELECT id, kind, capability, state, state_reason, run_id, payload, lane, dedupe_key, scopes, parked, priority, not_before, due,
       attempts, max_attempts, crash_count, lease_epoch, lease_holder, lease_until, granted_at, kill_at, error, created_at,
       line_at, finished_at
FROM job
WHERE state IN ('failed', 'expired') AND id < coalesce(CAST(:before AS TEXT), (SELECT id FROM job ORDER BY id DESC LIMIT 1) || '0')
      AND (CAST(:state AS TEXT) IS NULL OR state = :state) AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind)
      AND (CAST(:lane AS TEXT) IS NULL OR lane = :lane)
ORDER BY id DESC
LIMIT :limit;

-- name: cancel_job
-- Cancel a pending job.
UPDATE job SET state = 'cancelled', state_reason = :reason, finished_at = shoal_now(), offered_session = NULL, offered_until = NULL
WHERE id = :id AND state = 'pending';

-- name: set_quota
-- Set the maximum number of locked jobs of a quota key.
INSERT INTO quota (scope, most) VALUES (:scope, :most) ON CONFLICT (scope) DO UPDATE SET most = excluded.most;

-- name: remove_quota
-- Remove the limit of a quota key.
DELETE FROM quota WHERE scope = :scope;

-- name: quotas
-- Return every quota after a key, with its numbers of locked and parked jobs.
SELECT q.scope, q.most, (SELECT count(*) FROM job_seat AS s WHERE s.scope = q.scope) AS taken,
       (SELECT count(*) FROM (SELECT 1 FROM job AS j
                              WHERE j.state = 'pending' AND j.due = 2 AND j.parked = q.scope LIMIT 1000) AS p) AS parked
FROM quota AS q WHERE q.scope > :after ORDER BY q.scope LIMIT :limit;

-- name: first_parked
-- Return the first quota key with parked jobs after a given key.
SELECT parked FROM job WHERE state = 'pending' AND due = 2 AND parked > :after ORDER BY parked LIMIT 1;

-- name: queue_position
-- Return how many jobs are ahead of a given job in its queue, up to a maximum.
SELECT count(*) FROM (
    SELECT 1 FROM job AS other
    WHERE other.state = 'pending' AND other.due = 1 AND other.lane = (SELECT mine.lane FROM job AS mine WHERE mine.id = :id)
          AND other.kind = (SELECT mine.kind FROM job AS mine WHERE mine.id = :id)
          AND other.capability = (SELECT mine.capability FROM job AS mine WHERE mine.id = :id)
          AND other.rank < (SELECT mine.rank FROM job AS mine WHERE mine.id = :id)
    LIMIT :most) AS ahead;

-- name: live_among
-- Return the jobs among these that have not ended.
SELECT id FROM job WHERE id = ANY(:ids::text[]) AND CASE WHEN finished_at IS NULL THEN TRUE ELSE FALSE END;

-- name: locked_like
-- Return how many locked jobs of a kind need one of these capabilities, without the jobs of some holders.
SELECT count(*) FROM job
WHERE state = 'locked' AND lease_until > 0 AND kind = :kind AND capability = ANY(:capabilities::text[])
      AND substr(lease_holder, 1, 4) <> CAST(:but AS TEXT);
