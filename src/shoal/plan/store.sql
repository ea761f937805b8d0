-- name: policy
-- One policy, with its live job.
SELECT p.*, (SELECT j.id FROM job AS j WHERE j.dedupe_key = 'policy:' || p.id AND j.finished_at IS NULL) AS live_job_id
FROM policy AS p
WHERE p.id = :id;

-- name: policies_after
-- Return policies in the order in which they were created, with their live jobs. The query reads :scan policies after a
-- number and returns all of them, only the enabled ones, or only the disabled ones.
SELECT p.*, (SELECT j.id FROM job AS j WHERE j.dedupe_key = 'policy:' || p.id AND j.finished_at IS NULL) AS live_job_id
FROM (SELECT * FROM policy AS t WHERE t.number > :after ORDER BY t.number LIMIT :scan) AS p
WHERE CAST(:enabled AS INTEGER) IS NULL OR p.enabled = :enabled
ORDER BY p.number LIMIT :limit;

-- name: policy_number_after
-- Return the number of a policy, :skip policies after the first one after :after.
SELECT t.number FROM policy AS t WHERE t.number > :after ORDER BY t.number LIMIT 1 OFFSET :skip;

-- name: policies_of_project
-- Like `policies_after`, for one project. The project is compared as a range, because with `=`, PostgreSQL may read all
-- other policies to find a few.
SELECT p.*, (SELECT j.id FROM job AS j WHERE j.dedupe_key = 'policy:' || p.id AND j.finished_at IS NULL) AS live_job_id
FROM (SELECT * FROM policy AS t WHERE (t.project, t.number) > (:project, :after) AND t.project <= :project
      ORDER BY t.project, t.number LIMIT :scan) AS p
WHERE CAST(:enabled AS INTEGER) IS NULL OR p.enabled = :enabled
ORDER BY p.project, p.number LIMIT :limit;

-- name: policy_number_of_project_after
-- Like `policy_number_after`, for one project.
SELECT t.number FROM policy AS t WHERE (t.project, t.number) > (:project, :after) AND t.project <= :project
ORDER BY t.project, t.number LIMIT 1 OFFSET :skip;

-- name: ready_in_queue
-- Return whether a policy is due, or a run was skipped and has to be made up for.
SELECT 1 AS ready WHERE EXISTS (SELECT 1 FROM policy WHERE line = :line AND next_run_at <= shoal_now())
                        OR EXISTS (SELECT 1 FROM policy WHERE line = :line AND queued = 1);

-- name: due_in_queue
-- Return policies of a queue that are due, the longest due first, with their live jobs and without locking them.
SELECT p.*, (SELECT j.id FROM job AS j WHERE j.dedupe_key = 'policy:' || p.id AND j.finished_at IS NULL) AS live_job_id
FROM policy AS p WHERE p.line = :line AND p.next_run_at <= shoal_now()
ORDER BY p.next_run_at, p.number LIMIT :limit;

-- name: due_sites
-- Return site policies that are due, the longest due first.
SELECT p.*, NULL AS live_job_id FROM policy AS p WHERE p.line = 'site' AND p.next_run_at <= shoal_now()
ORDER BY p.next_run_at, p.number LIMIT :limit;

-- name: owed_sites
-- Return site policies that missed a run and whose last crawl has ended.
SELECT p.*, NULL AS live_job_id FROM policy AS p
WHERE p.line = 'site' AND p.queued = 1
      AND coalesce((SELECT c.state FROM crawl AS c WHERE c.id = p.live_crawl), 'stopped') IN ('stopped', 'completed', 'failed')
ORDER BY p.number LIMIT :limit;

-- name: lock_policy
-- Return one policy, locked against changes.
SELECT p.*, NULL AS live_job_id FROM policy AS p WHERE p.id = :id FOR UPDATE;

-- name: policies_of_ids
-- Return these policies, locked against changes in the order of their ids.
SELECT p.*, NULL AS live_job_id FROM policy AS p WHERE p.id = ANY(:ids::text[]) ORDER BY p.id FOR UPDATE;

-- name: due_policies
-- Return policies that are due, the longest due first.
SELECT p.*, NULL AS live_job_id FROM policy AS p WHERE p.line = :line AND p.next_run_at <= shoal_now()
ORDER BY p.next_run_at, p.number LIMIT :limit;

-- name: owed_policies
-- Return policies that missed a run and whose last run has ended.
SELECT p.*, NULL AS live_job_id FROM policy AS p
WHERE p.line = :line AND p.queued = 1
      AND (SELECT j.id FROM job AS j WHERE j.dedupe_key = 'policy:' || p.id AND j.finished_at IS NULL) IS NULL
ORDER BY p.number LIMIT :limit;

-- name: live_jobs_of_keys
-- The live jobs with these dedupe keys.
SELECT dedupe_key, id FROM job WHERE dedupe_key = ANY(:keys::text[]) AND finished_at IS NULL;

-- name: boosts
-- Return the points of the boosts of these subjects that apply now.
SELECT subject, boost FROM business_signal
WHERE subject = ANY(:subjects::text[]) AND CASE WHEN until > shoal_now() THEN TRUE ELSE FALSE END;

-- name: save_policy
-- Store the fields of a policy that a user may change.
UPDATE policy
SET project = :project, line = :line, spec = :spec, enabled = :enabled, planned_at = :planned_at, next_run_at = :next_run_at,
    queued = :queued, frequency_now = :frequency_now
WHERE id = :id;

-- name: remove_policy
-- Delete a policy.
DELETE FROM policy WHERE id = :id;

-- name: put_boost
-- Store a boost for a subject; the last one applies.
INSERT INTO business_signal (subject, boost, until) VALUES (:subject, :boost, :until)
ON CONFLICT (subject) DO UPDATE SET boost = excluded.boost, until = excluded.until;

-- name: count_policies
-- Count all policies, the policies that are due, and the policies that were due before :late microseconds ago.
SELECT (SELECT count(*) FROM policy) AS total,
       (SELECT count(*) FROM policy WHERE next_run_at IS NOT NULL AND next_run_at <= shoal_now()) AS due,
       (SELECT count(*) FROM policy WHERE next_run_at IS NOT NULL
                                          AND next_run_at <= shoal_now() - CAST(:late AS BIGINT)) AS late;
