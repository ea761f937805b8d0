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

-- name: states_of_group
-- Return how many jobs of a group are in each state.
SELECT state, count(*) AS count FROM job WHERE run_id = :run_id GROUP BY state;

-- name: group_lives
-- Return whether a job of the group has not ended.
SELECT 1 FROM job WHERE run_id = :run_id AND run_id IS NOT NULL AND finished_at IS NULL LIMIT 1;

-- name: end_group
-- Mark an open group as ended.
UPDATE job_group SET state = :state, state_reason = :reason, jobs = :jobs, finished_at = shoal_now()
WHERE id = :id AND state = 'open';

-- name: held_of_group
-- Return the locked jobs of a group.
SELECT id, lease_epoch FROM job
WHERE run_id = :run_id AND run_id IS NOT NULL AND finished_at IS NULL
      AND CASE WHEN state = 'locked' THEN TRUE ELSE FALSE END
ORDER BY id;
