-- name: insert_jobs
-- Store pending jobs, but none whose dedupe key a live one has. In the order of their keys, so that two batches never wait
-- for each other; `place` keeps the order of the batch in the line.
-- rows: id kind capability run_id payload lane dedupe_key scopes priority not_before max_attempts place ageing
INSERT INTO job (id, kind, capability, state, run_id, payload, lane, dedupe_key, scopes, priority, rank, not_before, due,
                 max_attempts, created_at, line_at)
SELECT g.id, g.kind, g.capability, 'pending', g.run_id, g.payload, g.lane, g.dedupe_key, g.scopes, g.priority,
       t.now + g.place - g.priority * g.ageing, coalesce(g.not_before, t.now),
       CASE WHEN g.not_before > t.now THEN 0 ELSE 1 END, g.max_attempts, t.now, t.now + g.place
FROM unnest(:id::text[], :kind::text[], :capability::text[], :run_id::text[], :payload::text[], :lane::text[],
            :dedupe_key::text[], :scopes::text[], :priority::smallint[], :not_before::bigint[], :max_attempts::int[],
            :place::bigint[], :ageing::bigint[])
     AS g (id, kind, capability, run_id, payload, lane, dedupe_key, scopes, priority, not_before, max_attempts, place, ageing)
CROSS JOIN (SELECT shoal_now() AS now) AS t
ORDER BY g.dedupe_key, g.place
ON CONFLICT (dedupe_key) WHERE dedupe_key IS NOT NULL AND finished_at IS NULL DO NOTHING;

-- name: live_by_keys
-- The live jobs that have these dedupe keys.
SELECT dedupe_key, id FROM job WHERE dedupe_key = ANY(:keys::text[]) AND finished_at IS NULL;

-- name: turn_jobs
-- End or return locked jobs and grant the next ones, in one statement: the moves by compare-and-set, each with its history
-- row; then, lane after lane, of the kinds and capabilities that are asked for the one whose first job ranks best, then the
-- next, up to :limit. The first row says which moves were made, the scopes of those jobs, and whether the time of jobs
-- that wait for one has come. What is leased is named by a list: whatever the planner thinks of how many :limit are, it
-- looks up these and no others.
WITH t AS MATERIALIZED (SELECT shoal_now() AS now),
m AS MATERIALIZED (
    SELECT * FROM unnest(:ids::text[], :epochs::bigint[], :states::text[], :ends::text[], :reasons::text[], :errors::text[],
                         :waits::bigint[], :attempts::int[], :crashes::int[], :drops::int[], :backs::int[])
         AS g (id, epoch, state, ended, reason, error, wait, attempt, crash, drop_by, back)
),
moved AS (
    UPDATE job
    SET state = m.state, state_reason = m.reason, error = coalesce(m.error, job.error), lease_holder = NULL,
        lease_until = NULL, kill_at = NULL,
        finished_at = CASE WHEN m.state <> 'pending' THEN t.now END,
        not_before = CASE WHEN m.state = 'pending' THEN t.now + m.wait ELSE job.not_before END,
        due = CASE WHEN m.state = 'pending' AND m.wait > 0 THEN 0 ELSE 1 END,
        attempts = job.attempts + m.attempt,
        crash_count = CASE WHEN g.settled = 1 THEN m.crash ELSE job.crash_count + m.crash END,
        line_at = CASE WHEN m.back = 1 THEN t.now ELSE job.line_at END,
        priority = greatest(job.priority - m.drop_by, 0),
        rank = CASE WHEN m.back = 1 THEN t.now ELSE job.line_at END - greatest(job.priority - m.drop_by, 0) * :ageing::bigint
    FROM t, m
    JOIN job AS was ON was.id = m.id
    LEFT JOIN job_grant AS g ON g.job_id = m.id AND g.epoch = m.epoch
    WHERE job.id = m.id AND job.state = 'locked' AND job.lease_epoch = m.epoch
    RETURNING job.id, m.epoch, m.ended, m.error, job.scopes, was.lease_holder, job.granted_at
),
closed AS (
    INSERT INTO job_grant (job_id, epoch, holder, granted_at, ended_at, ended, error)
    SELECT moved.id, moved.epoch, moved.lease_holder, moved.granted_at, t.now, moved.ended, moved.error FROM moved, t
    ON CONFLICT (job_id, epoch) DO UPDATE SET ended_at = excluded.ended_at, ended = excluded.ended, error = excluded.error
),
wanted AS MATERIALIZED (
    SELECT l.lane, k.kind, c.capability,
           (SELECT j.rank FROM job AS j
            WHERE j.state = 'pending' AND j.due = 1 AND j.lane = l.lane AND j.kind = k.kind AND j.capability = c.capability
            ORDER BY j.rank, j.id LIMIT 1) AS head
    FROM unnest(:lanes::text[]) WITH ORDINALITY AS l (lane, place), unnest(:kinds::text[]) AS k (kind),
         unnest(:capabilities::text[]) AS c (capability)
    WHERE :limit > 0
    ORDER BY l.place, head
),
picked AS MATERIALIZED (
    SELECT j.id FROM wanted AS w
    CROSS JOIN LATERAL (SELECT job.id FROM job
                        WHERE job.state = 'pending' AND job.due = 1 AND job.lane = w.lane AND job.kind = w.kind
                              AND job.capability = w.capability
                        ORDER BY job.rank, job.id LIMIT :limit FOR UPDATE SKIP LOCKED) AS j
    WHERE w.head IS NOT NULL
    LIMIT :limit
),
leased AS (
    UPDATE job
    SET state = 'locked', state_reason = NULL, lease_epoch = lease_epoch + 1, lease_holder = :holder,
        lease_until = t.now + :ttl, granted_at = t.now, offered_session = NULL, offered_until = NULL
    FROM t WHERE job.id = ANY(ARRAY(SELECT picked.id FROM picked))
    RETURNING job.id, job.lease_epoch, job.kind, job.run_id, job.payload, job.attempts, job.max_attempts, job.crash_count,
              t.now - job.created_at AS waited, job.scopes, job.lane, job.rank
)
SELECT NULL AS id, NULL::bigint AS lease_epoch, NULL AS kind, NULL AS run_id, NULL AS payload, NULL::int AS attempts,
       NULL::int AS max_attempts, NULL::int AS crash_count, NULL::bigint AS waited, NULL AS scopes, NULL AS lane,
       NULL::bigint AS rank,
       (SELECT array_agg(moved.id) FROM moved) AS moved,
       (SELECT array_agg(moved.scopes) FROM moved WHERE moved.scopes IS NOT NULL) AS moved_scopes,
       (SELECT array_agg(moved.id) FROM moved WHERE moved.scopes IS NOT NULL) AS moved_scoped,
       :limit > 0 AND EXISTS (SELECT 1 FROM job AS j WHERE j.state = 'pending' AND j.due = 0
                              AND j.not_before <= (SELECT t.now FROM t)) AS ripe
UNION ALL
SELECT leased.*, NULL, NULL, NULL, NULL FROM leased;

-- name: extend_leases
-- Move the ends of leases that are still held, and tell which of them are to be killed. Touches no column that a fence
-- guards.
-- rows: id epoch ttl
UPDATE job SET lease_until = t.now + m.ttl
FROM unnest(:id::text[], :epoch::bigint[], :ttl::bigint[]) AS m (id, epoch, ttl), (SELECT shoal_now() AS now) AS t
WHERE job.id = m.id AND job.state = 'locked' AND job.lease_epoch = m.epoch
RETURNING job.id, m.epoch, job.kill_at <= t.now AS kill;

-- name: fence_job
-- Whether a grant still holds; keeps it so until the transaction ends, without waiting for or blocking extensions.
SELECT 1 FROM job WHERE id = :id AND state = 'locked' AND lease_epoch = :epoch FOR KEY SHARE;

-- name: still_expired
-- Whether a grant is still locked and over, under the lock that the move needs.
SELECT 1 FROM job WHERE id = :id AND state = 'locked' AND lease_epoch = :epoch AND lease_until < shoal_now() FOR UPDATE;

-- name: make_due
-- Jobs whose time has come stand in line from now on.
UPDATE job SET due = 1
WHERE id = ANY(ARRAY(SELECT id FROM job WHERE state = 'pending' AND due = 0 AND not_before <= shoal_now()
                     ORDER BY not_before LIMIT :limit FOR UPDATE SKIP LOCKED));

-- name: lock_job
-- Whether a grant is still locked, under the lock that a move needs.
SELECT 1 FROM job WHERE id = :id AND state = 'locked' AND lease_epoch = :epoch FOR UPDATE;
