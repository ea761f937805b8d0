-- name: insert_jobs
-- Store pending jobs, except those whose dedupe key belongs to a live job. Sorted by key, so that two batches never
-- wait for each other; `place` keeps the order of the batch.
-- rows: id kind capability host run_id payload lane dedupe_key scopes priority not_before max_attempts lock_ttl place ageing
INSERT INTO job (id, kind, capability, host, state, run_id, payload, lane, dedupe_key, scopes, priority, rank, not_before, due,
                 max_attempts, lock_ttl, created_at, line_at)
SELECT g.id, g.kind, g.capability, g.host, 'pending', g.run_id, g.payload, g.lane, g.dedupe_key, g.scopes, g.priority,
       t.now + g.place - g.priority * g.ageing, coalesce(g.not_before, t.now),
       CASE WHEN g.not_before > t.now THEN 0 ELSE 1 END, g.max_attempts, g.lock_ttl, t.now, t.now + g.place
FROM unnest(:id::text[], :kind::text[], :capability::text[], :host::text[], :run_id::text[], :payload::text[],
            :lane::text[], :dedupe_key::text[], :scopes::text[], :priority::smallint[], :not_before::bigint[], :max_attempts::int[],
            :lock_ttl::bigint[], :place::bigint[], :ageing::bigint[])
     AS g (id, kind, capability, host, run_id, payload, lane, dedupe_key, scopes, priority, not_before, max_attempts,
           lock_ttl, place, ageing)
CROSS JOIN (SELECT shoal_now() AS now) AS t
ORDER BY g.dedupe_key, g.place
ON CONFLICT (dedupe_key) WHERE dedupe_key IS NOT NULL AND finished_at IS NULL DO NOTHING;

-- name: insert_dispatched_jobs
-- Store pending jobs whose lane the dispatcher chose; some of them are offered to a node. A separate statement, because
-- more columns cost more time.
-- rows: id kind capability host run_id payload lane dedupe_key scopes priority not_before max_attempts lock_ttl place ageing session offer dispatch
INSERT INTO job (id, kind, capability, host, state, run_id, payload, lane, dedupe_key, scopes, priority, rank, not_before, due,
                 max_attempts, lock_ttl, created_at, line_at, offered_session, offered_until, dispatch)
SELECT g.id, g.kind, g.capability, g.host, 'pending', g.run_id, g.payload, g.lane, g.dedupe_key, g.scopes, g.priority,
       t.now + g.place - g.priority * g.ageing, coalesce(g.not_before, t.now),
       CASE WHEN g.not_before > t.now THEN 0 ELSE 1 END, g.max_attempts, g.lock_ttl, t.now, t.now + g.place,
       g.session, t.now + g.offer, g.dispatch
FROM unnest(:id::text[], :kind::text[], :capability::text[], :host::text[], :run_id::text[], :payload::text[],
            :lane::text[], :dedupe_key::text[], :scopes::text[], :priority::smallint[], :not_before::bigint[], :max_attempts::int[],
            :lock_ttl::bigint[], :place::bigint[], :ageing::bigint[], :session::text[], :offer::bigint[], :dispatch::text[])
     AS g (id, kind, capability, host, run_id, payload, lane, dedupe_key, scopes, priority, not_before, max_attempts,
           lock_ttl, place, ageing, session, offer, dispatch)
CROSS JOIN (SELECT shoal_now() AS now) AS t
ORDER BY g.dedupe_key, g.place
ON CONFLICT (dedupe_key) WHERE dedupe_key IS NOT NULL AND finished_at IS NULL DO NOTHING;

-- name: live_by_keys
-- The live jobs that have these dedupe keys.
SELECT dedupe_key, id FROM job WHERE dedupe_key = ANY(:keys::text[]) AND finished_at IS NULL;

-- name: turn_jobs
-- End or return locked jobs and grant the next ones, in one statement. Moves are made by compare-and-set, each with a
-- history row unless no worker has seen the grant; equal moves are grouped and refer to their outcome by its number. A
-- returned job of a private lane goes to the shared lane, because its offer is over.
-- Then jobs are granted, up to :limit: lane by lane, and within a lane first from the requested kind and capability
-- whose first job ranks best, then from the next. If lanes are kept outside the database, the :popped jobs that still
-- wait are granted instead. The first row says which moves were made, which of the moved jobs may have seats, and
-- whether jobs have become due. With :alone, the statement does nothing if further statements would have to follow in
-- the same commit (seats to settle, or jobs to make due); the first row then says so. Moved and leased jobs are always
-- looked up by a list of ids, and the check whether they are locked is written so that the planner cannot estimate it;
-- otherwise the planner would read all locked jobs. Jobs to move are locked first and in the order of their ids, like
-- everywhere; jobs to grant are skipped if they are locked. The best first job is searched only where there is a
-- choice, because each search skips all rows that were leased since the last vacuum.
WITH t AS MATERIALIZED (SELECT shoal_now() AS now),
held AS MATERIALIZED (
    SELECT j.id, j.lease_holder FROM job AS j
    WHERE j.id = ANY(:ids::text[]) AND CASE WHEN j.state = 'locked' THEN TRUE ELSE FALSE END
    ORDER BY j.id FOR UPDATE
),
first AS MATERIALIZED (SELECT count(*) AS held FROM held),
wanted AS MATERIALIZED (
    SELECT l.lane, l.floor, k.kind, c.capability,
           CASE WHEN cardinality(:kinds::text[]) * cardinality(:capabilities::text[]) > 1 THEN
               (SELECT j.rank FROM job AS j
                WHERE j.state = 'pending' AND j.due = 1 AND j.lane = l.lane AND j.kind = k.kind AND j.capability = c.capability
                ORDER BY j.rank, j.id LIMIT 1)
           ELSE 0 END AS head
    FROM unnest(:lanes::text[], :floors::bigint[]) WITH ORDINALITY AS l (lane, floor, place), unnest(:kinds::text[]) AS k (kind),
         unnest(:capabilities::text[]) AS c (capability)
    WHERE :limit > 0 AND (SELECT first.held FROM first) >= 0
    ORDER BY l.place, head
),
picked AS MATERIALIZED (
    SELECT j.id, j.scopes FROM wanted AS w
    CROSS JOIN LATERAL (SELECT job.id, job.scopes FROM job
                        WHERE job.state = 'pending' AND job.due = 1 AND job.lane = w.lane AND job.kind = w.kind
                              AND job.capability = w.capability AND job.rank >= w.floor
                        ORDER BY job.rank, job.id LIMIT :limit FOR UPDATE SKIP LOCKED) AS j
    WHERE w.head IS NOT NULL
    LIMIT :limit
),
named AS MATERIALIZED (
    SELECT j.id, j.scopes FROM job AS j
    WHERE j.id = ANY(:popped::text[]) AND CASE WHEN j.state = 'pending' THEN j.due = 1 ELSE FALSE END
          AND (SELECT first.held FROM first) >= 0
    FOR UPDATE SKIP LOCKED
),
chosen AS MATERIALIZED (SELECT picked.id, picked.scopes FROM picked UNION ALL SELECT named.id, named.scopes FROM named),
seen AS MATERIALIZED (
    SELECT :limit > 0 AND EXISTS (SELECT 1 FROM job AS j WHERE j.state = 'pending' AND j.due = 0
                                  AND j.not_before <= (SELECT t.now FROM t)) AS any_due,
           EXISTS (SELECT 1 FROM quota) AS limited
),
clear AS MATERIALIZED (
    SELECT CASE WHEN :alone = 0 THEN TRUE
           ELSE NOT (seen.any_due OR seen.limited OR EXISTS (SELECT 1 FROM job_seat)
                     OR EXISTS (SELECT 1 FROM chosen WHERE strpos(chosen.scopes, '"key:') > 0)) END AS yes
    FROM seen
),
m AS MATERIALIZED (
    SELECT g.id, g.epoch, w.state, w.ended, w.reason, w.error, w.wait, w.counts & 1 AS attempt, w.counts >> 1 & 1 AS crash,
           w.counts >> 2 & 1 AS back, w.counts >> 3 & 1 AS unseen, w.counts >> 4 AS drop_by, held.lease_holder AS holder
    FROM unnest(:ids::text[], :epochs::bigint[], :ways::int[]) AS g (id, epoch, way)
    JOIN held ON held.id = g.id
    JOIN unnest(:states::text[], :ends::text[], :reasons::text[], :errors::text[], :waits::bigint[], :counts::int[]) WITH ORDINALITY
         AS w (state, ended, reason, error, wait, counts, place) ON w.place = g.way
    WHERE (SELECT clear.yes FROM clear)
),
moved AS (
    UPDATE job
    SET state = m.state, state_reason = m.reason, error = coalesce(m.error, job.error), lease_holder = NULL,
        lease_until = NULL, kill_at = NULL, lease_epoch = job.lease_epoch - m.unseen,
        finished_at = CASE WHEN m.state <> 'pending' THEN t.now END,
        not_before = CASE WHEN m.state = 'pending' THEN t.now + m.wait ELSE job.not_before END,
        due = CASE WHEN m.state = 'pending' AND m.wait > 0 THEN 0 ELSE 1 END,
        lane = CASE WHEN m.state = 'pending' AND job.lane LIKE 'node/%' THEN 'shared' ELSE job.lane END,
        attempts = job.attempts + m.attempt,
        crash_count = m.crash + CASE WHEN job.crash_count = 0 THEN 0
            WHEN (SELECT g.settled FROM job_grant AS g WHERE g.job_id = m.id AND g.epoch = m.epoch) = 1 THEN 0
            ELSE job.crash_count END,
        line_at = CASE WHEN m.back = 1 THEN t.now ELSE job.line_at END,
        priority = greatest(job.priority - m.drop_by, 0),
        rank = CASE WHEN m.back = 1 THEN t.now ELSE job.line_at END - greatest(job.priority - m.drop_by, 0) * :ageing::bigint
    FROM t, m
    WHERE job.id = ANY(ARRAY(SELECT m.id FROM m)) AND job.id = m.id AND job.lease_epoch = m.epoch
          AND CASE WHEN job.state = 'locked' THEN TRUE ELSE FALSE END
    RETURNING job.id, m.epoch, m.ended, m.error, m.unseen, job.scopes, m.holder, job.granted_at
),
closed AS (
    INSERT INTO job_grant (job_id, epoch, holder, granted_at, ended_at, ended, error)
    SELECT moved.id, moved.epoch, moved.holder, moved.granted_at, t.now, moved.ended, moved.error FROM moved, t
    WHERE moved.unseen = 0
    ON CONFLICT (job_id, epoch) DO UPDATE SET ended_at = excluded.ended_at, ended = excluded.ended, error = excluded.error
),
leased AS (
    UPDATE job
    SET state = 'locked', state_reason = NULL, lease_epoch = lease_epoch + 1, lease_holder = :holder,
        lease_until = t.now + CASE WHEN :by_job = 1 THEN coalesce(job.lock_ttl, :ttl::bigint) ELSE :ttl::bigint END,
        granted_at = t.now, offered_session = NULL, offered_until = NULL
    FROM t WHERE job.id = ANY(ARRAY(SELECT chosen.id FROM chosen)) AND (SELECT clear.yes FROM clear)
    RETURNING job.id, job.lease_epoch, job.kind, job.run_id, job.payload, job.attempts, job.max_attempts, job.crash_count,
              t.now - job.created_at AS waited, job.scopes, job.lane, job.rank, job.capability, job.priority,
              job.lease_until - job.granted_at AS ttl
)
SELECT NULL AS id, NULL::bigint AS lease_epoch, NULL AS kind, NULL AS run_id, NULL AS payload, NULL::int AS attempts,
       NULL::int AS max_attempts, NULL::int AS crash_count, NULL::bigint AS waited, NULL AS scopes, NULL AS lane,
       NULL::bigint AS rank, NULL AS capability, NULL::smallint AS priority, NULL::bigint AS ttl,
       (SELECT array_agg(moved.id) FROM moved) AS moved,
       (SELECT array_agg(moved.id) FROM moved WHERE moved.scopes IS NOT NULL) AS counted,
       seen.any_due, seen.limited, clear.yes AS done
FROM seen, clear
UNION ALL
SELECT leased.*, NULL, NULL, NULL, NULL, NULL FROM leased;

-- name: lane_entries
-- For the jobs among these that wait and are due, return where they wait.
SELECT id, lane, kind, capability, rank, host FROM job
WHERE id = ANY(:ids::text[]) AND CASE WHEN state = 'pending' THEN due = 1 ELSE FALSE END;

-- name: extend_leases
-- Extend leases that are still held, and return which jobs are to be killed. The statement touches no column that a
-- fence guards. It looks jobs up by id and locks them in id order, as `turn_jobs` does.
-- rows: id epoch ttl
WITH held AS MATERIALIZED (
    SELECT j.id FROM job AS j WHERE j.id = ANY(:id::text[]) AND CASE WHEN j.state = 'locked' THEN TRUE ELSE FALSE END
    ORDER BY j.id FOR NO KEY UPDATE
)
UPDATE job SET lease_until = t.now + m.ttl
FROM unnest(:id::text[], :epoch::bigint[], :ttl::bigint[]) AS m (id, epoch, ttl), (SELECT shoal_now() AS now) AS t
WHERE job.id = ANY(ARRAY(SELECT held.id FROM held)) AND job.id = m.id AND job.lease_epoch = m.epoch
      AND CASE WHEN job.state = 'locked' THEN TRUE ELSE FALSE END
RETURNING job.id, m.epoch, job.kill_at <= t.now AS kill;

-- name: fence_job
-- Return whether a grant is still valid; it stays valid until the transaction ends. This statement and lease extensions
-- do not wait for each other.
SELECT 1 FROM job WHERE id = :id AND lease_epoch = :epoch AND CASE WHEN state = 'locked' THEN TRUE ELSE FALSE END FOR KEY SHARE;

-- name: make_due
-- Mark jobs whose time has come as due.
UPDATE job SET due = 1
WHERE id = ANY(ARRAY(SELECT id FROM job WHERE state = 'pending' AND due = 0 AND not_before <= shoal_now()
                     ORDER BY not_before LIMIT :limit FOR UPDATE SKIP LOCKED))
RETURNING id, host;

-- name: lock_quota_keys
-- Lock these quota keys for counting, in order, so that there are no deadlocks.
SELECT count(pg_advisory_xact_lock(hashtextextended(s.scope, 7346019)))
FROM (SELECT scope FROM unnest(:keys::text[]) AS g (scope) ORDER BY scope) AS s;

-- name: lock_limited_keys
-- Return the quota keys among these that have a limit, and lock them for counting, in order. If :waits is 0, keys that
-- a different commit is counting are returned as not locked.
SELECT s.scope, CASE WHEN :waits = 1 THEN pg_advisory_xact_lock(hashtextextended(s.scope, 7346019)) IS NOT NULL
                ELSE pg_try_advisory_xact_lock(hashtextextended(s.scope, 7346019)) END AS locked
FROM (SELECT g.scope FROM unnest(:keys::text[]) AS g (scope)
      WHERE g.scope LIKE 'key:%' OR (SELECT 1 FROM quota AS q WHERE q.scope = g.scope) = 1
      ORDER BY g.scope) AS s;

-- name: delete_stale_job_seats
-- Delete the seats of jobs that are not locked.
DELETE FROM job_seat WHERE ctid = ANY(ARRAY(
    SELECT s.ctid FROM job_seat AS s
    WHERE coalesce((SELECT j.state FROM job AS j WHERE j.id = s.job_id), '') <> 'locked' ORDER BY s.job_id FOR UPDATE SKIP LOCKED));

-- name: insert_missing_job_seats
-- Insert missing seats for locked jobs with limited quota keys. Jobs that a different commit is moving are skipped, and
-- a commit that wants to move one of the other jobs waits for us, so that no job has a seat without being locked.
INSERT INTO job_seat (scope, job_id)
SELECT s.scope, j.id FROM job AS j, jsonb_array_elements_text(j.scopes::jsonb) AS s (scope)
WHERE j.state = 'locked' AND j.lease_until > 0 AND j.scopes IS NOT NULL
      AND (SELECT 1 FROM quota AS q WHERE q.scope = s.scope) = 1
      AND (SELECT 1 FROM job_seat AS t
           WHERE t.job_id = j.id AND CASE WHEN t.scope = s.scope THEN TRUE ELSE FALSE END) IS NULL
ORDER BY s.scope, j.id
FOR KEY SHARE OF j SKIP LOCKED
ON CONFLICT DO NOTHING;

-- name: count_job_seats
-- Return how many jobs count towards these quota keys, and their limits.
SELECT g.scope, (SELECT count(*) FROM job_seat AS s WHERE s.scope = g.scope) AS taken,
       (SELECT q.most FROM quota AS q WHERE q.scope = g.scope) AS most
FROM unnest(:keys::text[]) AS g (scope);

-- name: delete_job_seats
-- Delete the seats of these jobs; return their quota keys.
DELETE FROM job_seat WHERE job_id = ANY(:ids::text[]) RETURNING scope;

-- name: insert_job_seats
-- Insert seats for jobs.
-- rows: scope job_id
INSERT INTO job_seat (scope, job_id) SELECT * FROM unnest(:scope::text[], :job_id::text[]) AS g (scope, job_id)
ON CONFLICT DO NOTHING;

-- name: park_jobs
-- Take back grants that no worker has seen, because their quota is full, and park the jobs. The offers to nodes are
-- over, so these jobs are parked for every worker.
-- rows: id scope
UPDATE job
SET state = 'pending', state_reason = 'quota', lease_epoch = lease_epoch - 1, lease_holder = NULL, lease_until = NULL,
    granted_at = NULL, due = 2, parked = g.scope, lane = CASE WHEN job.lane LIKE 'node/%' THEN 'shared' ELSE job.lane END
FROM unnest(:id::text[], :scope::text[]) AS g (id, scope) WHERE job.id >= g.id AND job.id <= g.id;

-- name: rank_ahead
-- Return the rank of the job at the given position of a queue, if the queue is that long.
SELECT rank FROM job
WHERE state = 'pending' AND due = 1 AND lane = :lane AND kind = :kind AND capability = :capability
ORDER BY rank, id OFFSET :ahead LIMIT 1;

-- name: park_ahead
-- Park the jobs at the head of a queue whose quota key is full, too.
UPDATE job SET state_reason = 'quota', due = 2, parked = :scope
WHERE id = ANY(ARRAY(SELECT id FROM job
                     WHERE state = 'pending' AND due = 1 AND lane = :lane AND kind = :kind AND capability = :capability
                           AND rank <= :rank AND strpos(scopes, :needle) > 0
                     ORDER BY rank, id LIMIT :limit FOR UPDATE SKIP LOCKED))
RETURNING id;

-- name: unpark_jobs
-- Unpark the best parked jobs of a quota key.
UPDATE job SET due = 1, parked = NULL, state_reason = NULL
WHERE id = ANY(ARRAY(SELECT id FROM job WHERE state = 'pending' AND due = 2 AND parked = :scope
                     ORDER BY rank, id LIMIT :limit FOR UPDATE SKIP LOCKED))
RETURNING id, host;

-- name: give_up_offers
-- Move jobs that were offered to a node and not taken in time to the shared lane.
UPDATE job SET lane = :lane, offered_session = NULL, offered_until = NULL
WHERE id = ANY(ARRAY(SELECT id FROM job WHERE offered_until < shoal_now() AND offered_until IS NOT NULL
                     ORDER BY offered_until LIMIT :limit FOR UPDATE SKIP LOCKED))
      AND state = 'pending'
RETURNING id, host, dispatch;

-- name: return_lane
-- Move the waiting jobs of a lane to the shared one.
UPDATE job SET lane = :shared, offered_session = NULL, offered_until = NULL
WHERE id = ANY(ARRAY(SELECT id FROM job WHERE state = 'pending' AND due = 1 AND lane = :lane FOR UPDATE SKIP LOCKED))
      AND state = 'pending'
RETURNING id, host;

-- name: retry_jobs
-- Queue dead letters again as if they were new, unless a live job has their dedupe key.
UPDATE job
SET state = 'pending', state_reason = 'retried', attempts = 0, crash_count = 0, finished_at = NULL, due = 1, parked = NULL,
    not_before = t.now, line_at = t.now, rank = t.now - priority * :ageing::bigint,
    lane = CASE WHEN lane LIKE 'node/%' THEN 'shared' ELSE lane END
FROM (SELECT shoal_now() AS now) AS t
WHERE id = ANY(ARRAY(SELECT d.id FROM job AS d WHERE d.id = ANY(:ids::text[]) ORDER BY d.id FOR UPDATE))
      AND state IN ('failed', 'expired')
      AND (SELECT o.id FROM job AS o WHERE o.dedupe_key = job.dedupe_key AND o.finished_at IS NULL) IS NULL
RETURNING id, host;

-- name: lock_jobs
-- Return these jobs, locked in the order of their ids.
SELECT id FROM job WHERE id = ANY(:ids::text[]) ORDER BY id FOR UPDATE;

-- name: lock_expired
-- Return the grants among these that are still locked and have expired; lock the jobs in the order of their ids.
SELECT job.id FROM job
JOIN unnest(:ids::text[], :epochs::bigint[]) AS g (id, epoch) ON g.id = job.id AND g.epoch = job.lease_epoch
WHERE job.id = ANY(:ids::text[]) AND CASE WHEN job.state = 'locked' THEN job.lease_until < shoal_now() ELSE FALSE END
ORDER BY job.id
FOR UPDATE OF job;

-- name: lost_jobs
-- Return these jobs with what is needed to return them to the queue.
SELECT id, kind, run_id, lease_epoch AS epoch, attempts, max_attempts, crash_count, lease_holder,
       CASE WHEN lock_ttl IS NOT NULL THEN max_attempts - 1 END AS max_retry,
       (SELECT g.settled FROM job_grant AS g WHERE g.job_id = job.id AND g.epoch = job.lease_epoch) AS settled
FROM job WHERE id = ANY(:ids::text[]) AND CASE WHEN state = 'locked' THEN TRUE ELSE FALSE END
ORDER BY id;

-- name: end_of_purge
-- Among the jobs that ended between two times, skip :skip jobs and return the end time of the next job, if there is
-- one.
SELECT finished_at FROM job WHERE finished_at > :after AND finished_at < :before
ORDER BY finished_at LIMIT 1 OFFSET :skip;

-- name: purge_jobs
-- Remove jobs that ended in a period in one of these states, except jobs of a group that is still open. `kind`: NULL
-- for any.
DELETE FROM job
WHERE id = ANY(ARRAY(SELECT id FROM job
                     WHERE finished_at > :after AND finished_at <= :until
                           AND CASE WHEN state = ANY(:states::text[]) THEN TRUE ELSE FALSE END
                           AND kind <> ALL(:spared::text[]) AND (:kind::text IS NULL OR kind = :kind)
                           AND coalesce((SELECT g.state FROM job_group AS g WHERE g.id = job.run_id), '') <> 'open'
                     FOR UPDATE SKIP LOCKED))
      AND CASE WHEN finished_at IS NULL THEN FALSE ELSE TRUE END
RETURNING id;

-- name: purge_dead
-- Remove dead letters that ended before a time, except jobs of a group that is still open. `kind`: NULL for any.
DELETE FROM job
WHERE id = ANY(ARRAY(SELECT id FROM job
                     WHERE state IN ('failed', 'expired') AND finished_at < :before AND state = ANY(:states::text[])
                           AND kind <> ALL(:spared::text[]) AND (:kind::text IS NULL OR kind = :kind)
                           AND coalesce((SELECT g.state FROM job_group AS g WHERE g.id = job.run_id), '') <> 'open'
                     ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED))
      AND state IN ('failed', 'expired')
RETURNING id;

-- name: purge_grants
-- Remove the history of jobs that are gone.
DELETE FROM job_grant WHERE job_id = ANY(:ids::text[]);

-- name: newest_locked
-- Locked jobs that match and are older than a given job, newest first.
SELECT id, kind, capability, state, state_reason, run_id, payload, lane, dedupe_key, scopes, parked, priority, not_before, due,
       attempts, max_attempts, crash_count, lease_epoch, lease_holder, lease_until, granted_at, kill_at, error, created_at,
       line_at, finished_at
FROM (SELECT * FROM job WHERE state = 'locked' AND lease_until > 0 OFFSET 0) AS j
WHERE id < coalesce(CAST(:before AS TEXT), (SELECT id FROM job ORDER BY id DESC LIMIT 1) || '0')
      AND (CAST(:state AS TEXT) IS NULL OR state = :state) AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind)
      AND (CAST(:lane AS TEXT) IS NULL OR lane = :lane)
ORDER BY id DESC
LIMIT :limit;

-- name: cancel_waiting_jobs
-- Cancel the pending jobs of a run.
UPDATE job SET state = 'cancelled', state_reason = :reason, finished_at = shoal_now(), offered_session = NULL, offered_until = NULL
WHERE id = ANY(ARRAY(SELECT j.id FROM job AS j WHERE j.run_id = :run_id AND j.state = 'pending' ORDER BY j.id FOR UPDATE))
RETURNING id;

-- name: kill_jobs_of_run
-- Ask workers to kill the leased jobs of a run, after a grace period.
UPDATE job SET kill_at = shoal_now() + :grace
WHERE id = ANY(ARRAY(
    SELECT j.id FROM job AS j
    WHERE j.run_id = :run_id AND j.finished_at IS NULL AND CASE WHEN j.state = 'locked' THEN TRUE ELSE FALSE END
          AND (j.kill_at IS NULL OR j.kill_at > shoal_now() + :grace)
    ORDER BY j.id FOR NO KEY UPDATE));

-- name: set_priority_of_run
-- Change the priority of the jobs of a run that have not ended.
UPDATE job SET priority = CAST(:priority AS SMALLINT), rank = line_at - CAST(:priority AS SMALLINT) * CAST(:ageing AS BIGINT)
WHERE id = ANY(ARRAY(
    SELECT j.id FROM job AS j WHERE j.run_id = :run_id AND j.finished_at IS NULL ORDER BY j.id FOR NO KEY UPDATE))
RETURNING id;

-- name: beat_job
-- Extend the lease of a bot, if the owner matches, up to :longest after the grant, or to the job's own term if that is
-- longer; return how long the lease lasts now, whether the job is cancelled, and the lease holder.
UPDATE job
SET lease_until = least(shoal_now() + coalesce(lock_ttl, CAST(:ttl AS BIGINT)),
                        granted_at + greatest(coalesce(lock_ttl, :ttl), CAST(:longest AS BIGINT)))
WHERE id = :id AND lease_epoch = :epoch AND CASE WHEN state = 'locked' THEN TRUE ELSE FALSE END
      AND substr(lease_holder, 1, length(CAST(:owner AS TEXT))) = CAST(:owner AS TEXT)
      AND granted_at + greatest(coalesce(lock_ttl, :ttl), :longest) > shoal_now()
RETURNING least(coalesce(lock_ttl, :ttl), granted_at + greatest(coalesce(lock_ttl, :ttl), :longest) - shoal_now()) AS ttl,
          kill_at <= shoal_now() AS cancelled, lease_holder AS holder;
