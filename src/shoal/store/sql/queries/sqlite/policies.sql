-- name: insert_policies
-- Store policies, except those whose ids exist already.
-- rows: id project line spec enabled planned_at next_run_at created_at
INSERT INTO policy (id, project, line, spec, enabled, planned_at, next_run_at, created_at)
VALUES (:id, :project, :line, :spec, :enabled, :planned_at, :next_run_at, :created_at)
ON CONFLICT (id) DO NOTHING;

-- name: lock_policy
-- Return one policy. The write lock is held already.
SELECT p.*, NULL AS live_job_id FROM policy AS p WHERE p.id = :id;

-- name: due_policies
-- Return policies that are due, the longest due first.
SELECT p.*, NULL AS live_job_id FROM policy AS p WHERE p.line = :line AND p.next_run_at <= shoal_now()
ORDER BY p.next_run_at, p.number LIMIT :limit;

-- name: owed_policies
-- Return policies that missed a run and whose last run has ended.
SELECT p.*, NULL AS live_job_id FROM policy AS p
WHERE p.line = :line AND p.queued = 1 AND NOT EXISTS
    (SELECT 1 FROM job AS j WHERE j.dedupe_key = 'policy:' || p.id AND j.finished_at IS NULL)
ORDER BY p.number LIMIT :limit;

-- name: advance_policies
-- Move policies to their next run times, unless they have changed since they were read.
UPDATE policy
SET planned_at = :planned_at, next_run_at = :next_run_at, queued = :queued,
    runs = runs + :begun, last_run_at = CASE WHEN :begun = 1 THEN shoal_now() ELSE last_run_at END,
    live_crawl = coalesce(:crawl, live_crawl)
WHERE id = :id AND coalesce(next_run_at, 0) = :seen;

-- name: note_policies
-- Record the end of a run with its policy. In the error rate the last five runs weigh most.
UPDATE policy
SET last_success_at = CASE WHEN :success = 1 THEN max(coalesce(last_success_at, 0), :at) ELSE last_success_at END,
    last_hash = coalesce(:hash, last_hash),
    error_rate = error_rate * 0.8 + 0.2 * (1 - :success),
    frequency_now = coalesce(:frequency_now, frequency_now),
    planned_at = planned_at + :shift, next_run_at = next_run_at + :shift
WHERE id = :id;

-- name: policies_of_ids
-- Return these policies. The write lock is held already.
SELECT p.*, NULL AS live_job_id FROM policy AS p WHERE p.id IN (SELECT value FROM json_each(:ids));

-- name: live_jobs_of_keys
-- The live jobs with these dedupe keys.
SELECT dedupe_key, id FROM job WHERE dedupe_key IN (SELECT value FROM json_each(:keys)) AND finished_at IS NULL;

-- name: boosts
-- Return the points of the boosts of these subjects that apply now.
SELECT subject, boost FROM business_signal
WHERE subject IN (SELECT value FROM json_each(:subjects)) AND until > shoal_now();

-- name: forget_boosts
-- Remove boosts that ended before a time.
DELETE FROM business_signal
WHERE subject IN (SELECT subject FROM business_signal WHERE until < :before ORDER BY until LIMIT :limit);

-- name: waiting_page_jobs
-- Return how many page jobs with a capability wait in the shared lane, up to a maximum. Jobs that wait for their
-- host's rate limit do not count, because a slow host must not stop the policies of others.
SELECT count(*) AS count FROM (
    SELECT 1 FROM (SELECT DISTINCT ready.host
                   FROM (SELECT host FROM job_host INDEXED BY job_host_ready
                         WHERE due = 1 AND lane = 'shared' AND kind = 'page' AND capability = :capability
                         ORDER BY rank, number LIMIT :most) AS ready
                   WHERE NOT EXISTS (SELECT 1 FROM job_host AS l INDEXED BY job_host_rows
                                     WHERE l.lane = 'shared' AND l.kind = 'page' AND l.capability = :capability
                                           AND l.host = ready.host AND l.due = 0)) AS free_hosts
    CROSS JOIN job AS j INDEXED BY job_of_host
    WHERE j.state = 'pending' AND j.due = 1 AND j.lane = 'shared' AND j.kind = 'page' AND j.capability = :capability
          AND j.host = free_hosts.host
    LIMIT :most);
