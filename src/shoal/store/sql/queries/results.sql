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

-- name: old_results
-- Return results of policies that are older than a time, oldest first, after a position.
SELECT fetched_at, number FROM result
WHERE policy IS NOT NULL AND (fetched_at, number) > (:since, :number) AND fetched_at < :before
ORDER BY fetched_at, number LIMIT :limit;

-- name: success_of_policy
-- The last success of a policy before a number.
SELECT * FROM result
WHERE policy = :policy AND policy IS NOT NULL AND state <> 'pending' AND status = 'success' AND number < :before
ORDER BY number DESC LIMIT 1;

-- name: result_of_policy
-- Return the last result of one job of a policy.
SELECT * FROM result WHERE job_id = :job_id AND policy = :policy AND state <> 'pending' ORDER BY epoch DESC LIMIT 1;
