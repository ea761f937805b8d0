-- name: insert_group
-- Store an open group, unless its id is taken.
INSERT INTO job_group (id, state, project, labels, priority, total, spec, created_at)
VALUES (:id, 'open', :project, :labels, :priority, :total, :spec, shoal_now())
ON CONFLICT (id) DO NOTHING
RETURNING *;

-- name: group_by_id
-- One group.
SELECT * FROM job_group WHERE id = :id;

-- name: groups_before
-- Groups, newest first.
SELECT * FROM job_group WHERE number < :before AND state IN (:open, :completed, :cancelled)
ORDER BY number DESC LIMIT :limit;

-- name: lock_group
-- One group, locked against any other change.
SELECT * FROM job_group WHERE id = :id FOR UPDATE;

-- name: specs_of_groups
-- Return the page specs of groups.
SELECT id, spec, labels FROM job_group WHERE id = ANY(:ids::text[]);

-- name: states_of_group
-- Return how many jobs of a group are in each state.
SELECT state, count(*) AS count FROM job WHERE run_id = :run_id GROUP BY state;

-- name: group_lives
-- Return whether a job of the group has not ended.
SELECT 1 FROM job WHERE run_id = :run_id AND run_id IS NOT NULL AND finished_at IS NULL LIMIT 1;

-- name: held_of_group
-- Return the locked jobs of a group.
SELECT id, lease_epoch FROM job
WHERE run_id = :run_id AND run_id IS NOT NULL AND finished_at IS NULL
      AND CASE WHEN state = 'locked' THEN TRUE ELSE FALSE END
ORDER BY id;

-- name: end_group
-- Mark an open group as ended.
UPDATE job_group SET state = :state, state_reason = :reason, jobs = :jobs, finished_at = shoal_now()
WHERE id = :id AND state = 'open';

-- name: lock_held_jobs
-- Return the jobs among these that are leased, locked in the order of their ids. Jobs are looked up as in `turn_jobs`.
SELECT id, kind, run_id, lease_epoch AS epoch, lease_holder AS owner, attempts, max_attempts, payload
FROM job WHERE id = ANY(:ids::text[]) AND CASE WHEN state = 'locked' THEN TRUE ELSE FALSE END
ORDER BY id
FOR UPDATE;

-- name: ended_jobs
-- These jobs, as they were when their last lease ended.
SELECT id, kind, run_id, lease_epoch AS epoch, '' AS owner, attempts, max_attempts, payload
FROM job WHERE id = ANY(:ids::text[]) ORDER BY id;

-- name: answers_to_results
-- For each grant of these jobs with a result, return the receipt and the owner of the grant, unless the grant was
-- removed.
SELECT r.job_id, r.epoch, r.digest, r.state,
       (SELECT g.holder FROM job_grant AS g WHERE g.job_id = r.job_id AND g.epoch = r.epoch) AS holder
FROM result AS r WHERE r.job_id = ANY(:ids::text[]);

-- name: holders_of_grants
-- Return the holder of each grant of these jobs.
SELECT job_id, epoch, holder FROM job_grant WHERE job_id = ANY(:ids::text[]);

-- name: sizes_of_group
-- Return the size of the last result of each ended job of a group, in the order in which they were stored.
SELECT number, coalesce(length(data), 0) AS size FROM result
WHERE group_id = :group_id AND group_id IS NOT NULL AND state <> 'pending' AND number > :after
ORDER BY number LIMIT :limit;

-- name: results_of_group
-- Return these results, up to a number.
SELECT * FROM result
WHERE group_id = :group_id AND group_id IS NOT NULL AND state <> 'pending' AND number > :after AND number <= :last
ORDER BY number;

-- name: results_of_job
-- Every result of a job, oldest first.
SELECT * FROM result WHERE job_id = :job_id ORDER BY epoch;

-- name: sizes_of_policy
-- Return the size of the last result of each ended job of a policy, newest first, before a number.
SELECT number, coalesce(length(data), 0) AS size FROM result
WHERE policy = :policy AND policy IS NOT NULL AND state <> 'pending' AND number < :before
ORDER BY number DESC LIMIT :limit;

-- name: results_of_policy
-- Return these results, down to a number.
SELECT * FROM result
WHERE policy = :policy AND policy IS NOT NULL AND state <> 'pending' AND number < :before AND number >= :last
ORDER BY number DESC;

-- name: success_of_policy
-- The last success of a policy before a number.
SELECT * FROM result
WHERE policy = :policy AND policy IS NOT NULL AND state <> 'pending' AND status = 'success' AND number < :before
ORDER BY number DESC LIMIT 1;

-- name: result_of_policy
-- Return the last result of one job of a policy.
SELECT * FROM result WHERE job_id = :job_id AND policy = :policy AND state <> 'pending' ORDER BY epoch DESC LIMIT 1;

-- name: result_of_scrape
-- Return the last result of a scrape: a job without group or policy.
SELECT state, url, epoch, fetched_at, error_code, error_message, data FROM result
WHERE job_id = :job_id AND group_id IS NULL AND policy IS NULL AND state <> 'pending' ORDER BY epoch DESC LIMIT 1;

-- name: old_results
-- Return results of policies and scrapes that are older than a time, oldest first, after a position.
SELECT fetched_at, number FROM result
WHERE group_id IS NULL AND (fetched_at, number) > (:since, :number) AND fetched_at < :before
ORDER BY fetched_at, number LIMIT :limit;

-- name: purge_results
-- Remove the results of deleted jobs, except results of policies and scrapes, which are kept longer.
DELETE FROM result WHERE job_id = ANY(:ids::text[]) AND group_id IS NOT NULL;
