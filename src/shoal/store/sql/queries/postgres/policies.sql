-- name: insert_policies
-- Store policies, except those whose ids exist already.
-- rows: id project line spec enabled planned_at next_run_at created_at
INSERT INTO policy (id, project, line, spec, enabled, planned_at, next_run_at, created_at)
SELECT * FROM unnest(:id::text[], :project::text[], :line::text[], :spec::text[], :enabled::smallint[], :planned_at::bigint[],
                     :next_run_at::bigint[], :created_at::bigint[])
ON CONFLICT (id) DO NOTHING;

-- name: lock_policy
-- Return one policy, locked against changes.
SELECT p.*, NULL AS live_job_id FROM policy AS p WHERE p.id = :id FOR UPDATE;

-- name: due_policies
-- Return policies that are due, the longest due first, locked against other schedulers.
SELECT p.*, NULL AS live_job_id FROM policy AS p WHERE p.line = :line AND p.next_run_at <= shoal_now()
ORDER BY p.next_run_at, p.number LIMIT :limit FOR UPDATE SKIP LOCKED;

-- name: owed_policies
-- Return policies that missed a run and whose last run has ended, locked against other schedulers.
SELECT p.*, NULL AS live_job_id FROM policy AS p
WHERE p.line = :line AND p.queued = 1
      AND (SELECT j.id FROM job AS j WHERE j.dedupe_key = 'policy:' || p.id AND j.finished_at IS NULL) IS NULL
ORDER BY p.number LIMIT :limit FOR UPDATE OF p SKIP LOCKED;

-- name: advance_policies
-- Move policies to their next run times, unless they have changed since they were read.
-- batch: arrays
UPDATE policy
SET planned_at = g.planned_at, next_run_at = g.next_run_at, queued = g.queued,
    runs = runs + g.begun, last_run_at = CASE WHEN g.begun = 1 THEN shoal_now() ELSE last_run_at END,
    live_crawl = coalesce(g.crawl, policy.live_crawl)
FROM unnest(:id::text[], :seen::bigint[], :planned_at::bigint[], :next_run_at::bigint[], :queued::smallint[], :begun::smallint[],
            :crawl::text[])
     AS g (id, seen, planned_at, next_run_at, queued, begun, crawl)
WHERE policy.id >= g.id AND policy.id <= g.id AND coalesce(policy.next_run_at, 0) = g.seen;

-- name: note_policies
-- Record the end of a run with its policy. In the error rate the last five runs weigh most.
-- batch: arrays
UPDATE policy
SET last_success_at = CASE WHEN g.success = 1 THEN greatest(coalesce(policy.last_success_at, 0), g.at) ELSE policy.last_success_at END,
    last_hash = coalesce(g.hash, policy.last_hash),
    error_rate = policy.error_rate * 0.8 + 0.2 * (1 - g.success),
    frequency_now = coalesce(g.frequency_now, policy.frequency_now),
    planned_at = policy.planned_at + g.shift, next_run_at = policy.next_run_at + g.shift
FROM unnest(:id::text[], :success::smallint[], :at::bigint[], :hash::text[], :frequency_now::bigint[], :shift::bigint[])
     AS g (id, success, at, hash, frequency_now, shift)
WHERE policy.id >= g.id AND policy.id <= g.id;

-- name: policies_of_ids
-- Return these policies, locked against changes.
SELECT p.*, NULL AS live_job_id FROM policy AS p WHERE p.id = ANY(:ids::text[]) ORDER BY p.id FOR UPDATE;

-- name: live_jobs_of_keys
-- The live jobs with these dedupe keys.
SELECT dedupe_key, id FROM job WHERE dedupe_key = ANY(:keys::text[]) AND finished_at IS NULL;

-- name: boosts
-- Return the points of the boosts of these subjects that apply now.
SELECT subject, boost FROM business_signal WHERE subject = ANY(:subjects::text[]) AND CASE WHEN until > shoal_now() THEN TRUE ELSE FALSE END;

-- name: forget_boosts
-- Remove boosts that ended before a time.
DELETE FROM business_signal WHERE subject = ANY(ARRAY(
    SELECT subject FROM business_signal WHERE until < :before ORDER BY until LIMIT :limit FOR UPDATE SKIP LOCKED));

-- name: waiting_page_jobs
-- Return how many page jobs with a capability wait in the shared lane, up to a maximum. Jobs that wait for their
-- host's rate limit do not count, because a slow host must not stop the policies of others.
SELECT count(*) AS count FROM (
    SELECT 1 FROM (SELECT DISTINCT ready.host
                   FROM (SELECT job_host.host FROM job_host
                         WHERE due = 1 AND lane = 'shared' AND kind = 'page' AND capability = :capability
                         ORDER BY rank, number LIMIT :most) AS ready
                   WHERE (SELECT l.number FROM job_host AS l
                          WHERE l.lane = 'shared' AND l.kind = 'page' AND l.capability = :capability AND l.host = ready.host
                                AND CASE WHEN l.due = 0 THEN TRUE ELSE FALSE END LIMIT 1) IS NULL) AS free_hosts
    CROSS JOIN LATERAL (SELECT 1 FROM job AS j
                        WHERE j.state = 'pending' AND j.due = 1 AND j.lane = 'shared' AND j.kind = 'page'
                              AND j.capability = :capability AND j.host IS NOT NULL AND j.host = free_hosts.host
                        LIMIT :most) AS w
    LIMIT :most) AS found;
