-- name: runs_of_jobs
-- The groups of these jobs.
SELECT DISTINCT j.run_id FROM json_each(:ids) AS i CROSS JOIN job AS j ON j.id = i.value;

-- name: lock_held_jobs
-- Return those of these jobs that are leased. The write lock is held already.
SELECT j.id, j.kind, j.run_id, j.lease_epoch AS epoch, j.lease_holder AS owner, j.attempts, j.max_attempts, j.payload
FROM json_each(:ids) AS i CROSS JOIN job AS j ON j.id = i.value AND j.state = 'locked';

-- name: ended_jobs
-- These jobs, as they were when their last lease ended.
SELECT j.id, j.kind, j.run_id, j.lease_epoch AS epoch, '' AS owner, j.attempts, j.max_attempts, j.payload
FROM json_each(:ids) AS i CROSS JOIN job AS j ON j.id = i.value;

-- name: answers_to_results
-- Return the receipt for the result of each grant of these jobs, and its owner.
SELECT r.job_id, r.epoch, r.digest, r.state, g.holder
FROM json_each(:ids) AS i CROSS JOIN result AS r ON r.job_id = i.value
     JOIN job_grant AS g ON g.job_id = r.job_id AND g.epoch = r.epoch;

-- name: holders_of_grants
-- Return who held each grant of these jobs.
SELECT g.job_id, g.epoch, g.holder FROM json_each(:ids) AS i CROSS JOIN job_grant AS g ON g.job_id = i.value;

-- name: insert_results
-- Store a result.
-- rows: job_id epoch group_id policy state status http_status fetched_at duration digest
-- rows: url final_url html_hash error_code error_message data
INSERT INTO result (job_id, epoch, group_id, policy, state, status, http_status, fetched_at, duration, digest, url, final_url,
                    html_hash, error_code, error_message, data)
VALUES (:job_id, :epoch, :group_id, :policy, :state, :status, :http_status, :fetched_at, :duration, :digest, :url, :final_url,
        :html_hash, :error_code, :error_message, :data);

-- name: purge_results
-- Remove the results of deleted jobs, except those of policies.
DELETE FROM result WHERE job_id IN (SELECT value FROM json_each(:ids)) AND policy IS NULL;

-- name: forget_results
-- Remove these results of policies, except the last success of an existing policy.
DELETE FROM result WHERE number IN (
    SELECT r.number FROM json_each(:numbers) AS i CROSS JOIN result AS r ON r.number = i.value
    WHERE EXISTS (SELECT 1 FROM result AS n INDEXED BY result_of_policy
                  WHERE n.policy = r.policy AND n.policy IS NOT NULL AND n.state <> 'pending' AND n.status = 'success'
                        AND n.number > r.number)
          OR r.status = 'fail' OR NOT EXISTS (SELECT 1 FROM policy AS p WHERE p.id = r.policy));
