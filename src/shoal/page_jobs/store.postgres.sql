-- name: lock_groups
-- Lock these groups and the groups of these jobs, in the order of their ids: a shared lock while a job of the group
-- waits, else an exclusive lock (decision 0050). Mostly, the waiting jobs are the ones that were stored last, so the
-- index is read from its end; an equality would make the planner read the index from its start, where the jobs have
-- ended.
WITH asked AS MATERIALIZED (
    SELECT DISTINCT a.id FROM (SELECT run_id AS id FROM job WHERE id = ANY(:jobs::text[])
                               UNION ALL SELECT unnest(:groups::text[])) AS a
    ORDER BY a.id
)
SELECT shared.id AS shared, alone.id AS alone
FROM (SELECT asked.id, (SELECT 1 FROM job AS j
                        WHERE j.run_id >= asked.id AND j.run_id <= asked.id AND j.run_id IS NOT NULL
                              AND j.finished_at IS NULL AND CASE WHEN j.state = 'pending' THEN TRUE ELSE FALSE END
                        ORDER BY j.run_id DESC LIMIT 1) IS NOT NULL AS waits
      FROM asked OFFSET 0) AS a
LEFT JOIN LATERAL (SELECT id FROM job_group WHERE id = a.id AND a.waits FOR KEY SHARE) AS shared ON TRUE
LEFT JOIN LATERAL (SELECT id FROM job_group WHERE id = a.id AND NOT a.waits FOR UPDATE) AS alone ON TRUE;

-- name: group_to_end
-- Return whether the group is open and none of its jobs waits; if so, also return the group with an exclusive lock,
-- unless a different commit shares the lock.
SELECT o.is_due, g.*
FROM (SELECT coalesce((SELECT state FROM job_group WHERE id = :id), '') = 'open'
             AND (SELECT 1 FROM job AS j
                  WHERE j.run_id >= :id AND j.run_id <= :id AND j.run_id IS NOT NULL AND j.finished_at IS NULL
                        AND CASE WHEN j.state = 'pending' THEN TRUE ELSE FALSE END
                  ORDER BY j.run_id DESC LIMIT 1) IS NULL AS is_due) AS o
LEFT JOIN LATERAL (SELECT * FROM job_group WHERE id = :id AND o.is_due FOR UPDATE SKIP LOCKED) AS g ON TRUE;

-- name: prune_groups
-- Remove groups that ended long ago and have no jobs any more.
DELETE FROM job_group WHERE number = ANY(ARRAY(
    SELECT g.number FROM job_group AS g
    WHERE g.finished_at IS NOT NULL AND g.finished_at < :before
          AND (SELECT j.id FROM job AS j WHERE j.run_id = g.id AND j.run_id IS NOT NULL ORDER BY j.id LIMIT 1) IS NULL
    ORDER BY g.finished_at LIMIT :limit FOR UPDATE SKIP LOCKED));

-- name: insert_results
-- Store results in their given order. They replace results of earlier jobs with the same ids, which were removed
-- without their results.
-- rows: job_id epoch group_id policy state status http_status fetched_at duration digest
-- rows: url final_url html_hash error_code error_message data
INSERT INTO result (job_id, epoch, group_id, policy, state, status, http_status, fetched_at, duration, digest, url, final_url,
                    html_hash, error_code, error_message, data)
SELECT * FROM unnest(:job_id::text[], :epoch::bigint[], :group_id::text[], :policy::text[], :state::text[], :status::text[],
                     :http_status::smallint[], :fetched_at::bigint[], :duration::float8[], :digest::text[], :url::text[],
                     :final_url::text[], :html_hash::text[], :error_code::text[], :error_message::text[],
                     :data::text[])
ON CONFLICT (job_id, epoch) DO UPDATE
SET group_id = excluded.group_id, policy = excluded.policy, state = excluded.state, status = excluded.status,
    http_status = excluded.http_status, fetched_at = excluded.fetched_at, duration = excluded.duration,
    digest = excluded.digest, url = excluded.url, final_url = excluded.final_url, html_hash = excluded.html_hash,
    error_code = excluded.error_code, error_message = excluded.error_message, data = excluded.data;

-- name: forget_results
-- Remove these results of policies and scrapes, except the last success of an existing policy.
DELETE FROM result AS r
WHERE r.number = ANY(:numbers::bigint[])
      AND (EXISTS (SELECT 1 FROM result AS n
                   WHERE n.policy = r.policy AND n.state <> 'pending' AND n.status = 'success' AND n.number > r.number)
           OR r.status = 'fail' OR (SELECT p.id FROM policy AS p WHERE p.id = r.policy) IS NULL);
