-- name: lock_group
-- One group; the write lock is held already.
SELECT * FROM job_group WHERE id = :id;

-- name: specs_of_groups
-- Return the page specs of groups.
SELECT g.id, g.spec, g.labels FROM json_each(:ids) AS i CROSS JOIN job_group AS g ON g.id = i.value;

-- name: prune_groups
-- Remove groups that ended long ago and have no jobs any more.
DELETE FROM job_group WHERE number IN
    (SELECT g.number FROM job_group AS g
     WHERE g.finished_at IS NOT NULL AND g.finished_at < :before
           AND NOT EXISTS (SELECT 1 FROM job AS j WHERE j.run_id = g.id AND j.run_id IS NOT NULL)
     ORDER BY g.finished_at LIMIT :limit);
