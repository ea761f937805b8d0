-- name: runs_of_jobs
-- The groups of these jobs.
SELECT DISTINCT run_id FROM job WHERE id = ANY(:ids::text[]);

-- name: lock_held_jobs
-- Return those of these jobs that are leased, locked in the order of their ids. Looked up as in `turn_jobs`.
SELECT id, kind, run_id, lease_epoch AS epoch, lease_holder AS owner, attempts, max_attempts, payload
FROM job WHERE id = ANY(:ids::text[]) AND CASE WHEN state = 'locked' THEN TRUE ELSE FALSE END
ORDER BY id
FOR UPDATE;

-- name: ended_jobs
-- These jobs, as they were when their last lease ended.
SELECT id, kind, run_id, lease_epoch AS epoch, '' AS owner, attempts, max_attempts, payload
FROM job WHERE id = ANY(:ids::text[]) ORDER BY id;

-- name: answers_to_results
-- Return the receipt for the result of each grant of these jobs, and its owner.
SELECT r.job_id, r.epoch, r.digest, r.state, g.holder
FROM result AS r
CROSS JOIN LATERAL (SELECT t.holder FROM job_grant AS t WHERE t.job_id = r.job_id AND t.epoch = r.epoch OFFSET 0) AS g
WHERE r.job_id = ANY(:ids::text[]);

-- name: holders_of_grants
-- Return who held each grant of these jobs.
SELECT job_id, epoch, holder FROM job_grant WHERE job_id = ANY(:ids::text[]);

-- name: insert_results
-- Store results, in the order in which they come.
-- rows: job_id epoch group_id policy state status http_status fetched_at duration digest
-- rows: url final_url html_hash error_code error_message data
INSERT INTO result (job_id, epoch, group_id, policy, state, status, http_status, fetched_at, duration, digest, url, final_url,
                    html_hash, error_code, error_message, data)
SELECT * FROM unnest(:job_id::text[], :epoch::bigint[], :group_id::text[], :policy::text[], :state::text[], :status::text[],
                     :http_status::smallint[], :fetched_at::bigint[], :duration::float8[], :digest::text[], :url::text[],
                     :final_url::text[], :html_hash::text[], :error_code::text[], :error_message::text[],
                     :data::text[]);

-- name: purge_results
-- Remove the results of deleted jobs, except those of policies.
DELETE FROM result WHERE job_id = ANY(:ids::text[]) AND policy IS NULL;

-- name: forget_results
-- Remove these results of policies, except the last success of an existing policy.
DELETE FROM result AS r
WHERE r.number = ANY(:numbers::bigint[])
      AND (EXISTS (SELECT 1 FROM result AS n
                   WHERE n.policy = r.policy AND n.state <> 'pending' AND n.status = 'success' AND n.number > r.number)
           OR r.status = 'fail' OR (SELECT p.id FROM policy AS p WHERE p.id = r.policy) IS NULL);
