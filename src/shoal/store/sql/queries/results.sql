-- name: results_of_group
-- The last word on each ended job of a group, in the order in which they were stored.
SELECT * FROM result WHERE group_id = :group_id AND group_id IS NOT NULL AND state <> 'pending' AND number > :number
ORDER BY number LIMIT :limit;

-- name: results_of_job
-- Every result of a job, oldest first.
SELECT * FROM result WHERE job_id = :job_id ORDER BY epoch;
