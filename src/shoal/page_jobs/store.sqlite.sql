-- name: lock_groups
-- Nothing to lock: the write lock is held already.
SELECT 1 WHERE :jobs IS NULL AND :groups IS NULL;

-- name: group_to_end
-- Return the group, and whether it is open and none of its jobs waits.
SELECT g.*, g.state = 'open' AND NOT EXISTS (SELECT 1 FROM job AS j INDEXED BY job_live_of_run
                                             WHERE j.run_id = g.id AND j.run_id IS NOT NULL AND j.finished_at IS NULL
                                                   AND +j.state = 'pending') AS is_due
FROM job_group AS g WHERE g.id = :id;

-- name: prune_groups
-- Remove groups that ended long ago and have no jobs any more.
DELETE FROM job_group WHERE number IN
    (SELECT g.number FROM job_group AS g
     WHERE g.finished_at IS NOT NULL AND g.finished_at < :before
           AND NOT EXISTS (SELECT 1 FROM job AS j WHERE j.run_id = g.id AND j.run_id IS NOT NULL)
     ORDER BY g.finished_at LIMIT :limit);

-- name: insert_results
-- Store a result. It replaces a result of an earlier job with the same id, which was removed without its results.
-- rows: job_id epoch group_id policy state status http_status fetched_at duration digest
-- rows: url final_url html_hash error_code error_message data
INSERT INTO result (job_id, epoch, group_id, policy, state, status, http_status, fetched_at, duration, digest, url, final_url,
                    html_hash, error_code, error_message, data)
VALUES (:job_id, :epoch, :group_id, :policy, :state, :status, :http_status, :fetched_at, :duration, :digest, :url, :final_url,
        :html_hash, :error_code, :error_message, :data)
ON CONFLICT (job_id, epoch) DO UPDATE
SET group_id = excluded.group_id, policy = excluded.policy, state = excluded.state, status = excluded.status,
    http_status = excluded.http_status, fetched_at = excluded.fetched_at, duration = excluded.duration,
    digest = excluded.digest, url = excluded.url, final_url = excluded.final_url, html_hash = excluded.html_hash,
    error_code = excluded.error_code, error_message = excluded.error_message, data = excluded.data;

-- name: forget_results
-- Remove these results of policies and scrapes, except the last success of an existing policy.
DELETE FROM result WHERE number IN (
    SELECT r.number FROM json_each(:numbers) AS i CROSS JOIN result AS r ON r.number = i.value
    WHERE EXISTS (SELECT 1 FROM result AS n INDEXED BY result_of_policy
                  WHERE n.policy = r.policy AND n.policy IS NOT NULL AND n.state <> 'pending' AND n.status = 'success'
                        AND n.number > r.number)
          OR r.status = 'fail' OR NOT EXISTS (SELECT 1 FROM policy AS p WHERE p.id = r.policy));
