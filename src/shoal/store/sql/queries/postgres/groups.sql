-- name: lock_group
-- One group, locked against any other change.
SELECT * FROM job_group WHERE id = :id FOR UPDATE;

-- name: specs_of_groups
-- Return the page specs of groups.
SELECT id, spec, labels FROM job_group WHERE id = ANY(:ids::text[]);

-- name: prune_groups
-- Remove groups that ended long ago and have no jobs any more.
DELETE FROM job_group WHERE number = ANY(ARRAY(
    SELECT g.number FROM job_group AS g
    WHERE g.finished_at IS NOT NULL AND g.finished_at < :before
          AND (SELECT j.id FROM job AS j WHERE j.run_id = g.id AND j.run_id IS NOT NULL ORDER BY j.id LIMIT 1) IS NULL
    ORDER BY g.finished_at LIMIT :limit));
