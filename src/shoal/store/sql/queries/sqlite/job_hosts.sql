-- name: add_job_hosts
-- Note at which hosts these jobs wait, unless a row says so already.
INSERT INTO job_host (lane, kind, capability, host, rank)
SELECT found.lane, found.kind, found.capability, found.host, found.rank
FROM (SELECT j.lane, j.kind, j.capability, j.host, min(j.rank) AS rank
      FROM json_each(:ids) AS i CROSS JOIN job AS j ON j.id = i.value
      WHERE j.state = 'pending' AND j.due = 1 AND j.host IS NOT NULL
      GROUP BY j.lane, j.kind, j.capability, j.host) AS found
WHERE NOT EXISTS (SELECT 1 FROM job_host AS h INDEXED BY job_host_rows
                  WHERE h.lane = found.lane AND h.kind = found.kind AND h.capability = found.capability
                        AND h.host = found.host AND h.rank <= found.rank);

-- name: make_hosts_ready
-- Hosts whose time has come, or comes within :ahead, are to be looked at; so are those whose time is further away than anybody sets it (:longest): a
-- clock was set back.
UPDATE job_host SET due = 1
WHERE number IN (SELECT * FROM (SELECT number FROM job_host INDEXED BY job_host_later
                                WHERE due = 0 AND ready_at <= (SELECT shoal_now()) + :ahead ORDER BY ready_at LIMIT :limit)
                 UNION ALL
                 SELECT * FROM (SELECT number FROM job_host INDEXED BY job_host_later
                                WHERE due = 0 AND ready_at > (SELECT shoal_now()) + :longest ORDER BY ready_at LIMIT :limit));

-- name: take_ready_hosts
-- The hosts whose best jobs rank best, and how they stand; `drop_job_hosts` takes their rows.
SELECT ready.host, min(ready.rank) AS rank, h.next_at, h.delay, h.held_until, h.backoff, h.latency, h.latency_at, h.robots_at,
       (SELECT shoal_now()) AS now
FROM (SELECT host, rank FROM job_host INDEXED BY job_host_ready
      WHERE due = 1 AND lane = :lane AND kind = :kind AND capability = :capability
      ORDER BY rank, number LIMIT :limit) AS ready
LEFT JOIN host AS h ON h.origin = ready.host
GROUP BY ready.host
ORDER BY min(ready.rank), ready.host;

-- name: drop_job_hosts
-- Take the rows of a host, up to so many.
-- rows: lane kind capability host most
DELETE FROM job_host
WHERE number IN (SELECT number FROM job_host INDEXED BY job_host_rows
                 WHERE lane = :lane AND kind = :kind AND capability = :capability AND host = :host
                 ORDER BY due DESC LIMIT :most);

-- name: waiting_at_hosts
-- The best of the jobs that wait at a host, so many of them.
-- rows: lane kind capability host count
SELECT id, rank, lane, kind, capability, host FROM job INDEXED BY job_of_host
WHERE state = 'pending' AND due = 1 AND lane = :lane AND kind = :kind AND capability = :capability AND host = :host
ORDER BY rank, id LIMIT :count;

-- name: lease_these_jobs
-- Grant those of these jobs that still wait.
UPDATE job
SET state = 'locked', state_reason = NULL, lease_epoch = lease_epoch + 1, lease_holder = :holder,
    lease_until = (SELECT shoal_now()) + CASE WHEN :by_job = 1 THEN coalesce(lock_ttl, :ttl) ELSE :ttl END,
    granted_at = (SELECT shoal_now()), offered_session = NULL, offered_until = NULL
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'pending' AND +due = 1
RETURNING id, lease_epoch, kind, run_id, payload, attempts, max_attempts, crash_count, granted_at - created_at AS waited,
          scopes, lane, rank, capability, priority, CASE WHEN :by_job = 1 THEN coalesce(lock_ttl, :ttl) ELSE :ttl END AS ttl,
          host;

-- name: put_back_hosts
-- Note whether jobs still wait at a host, and when to look at it again.
-- rows: lane kind capability host due wait
INSERT INTO job_host (lane, kind, capability, host, rank, due, ready_at)
SELECT :lane, :kind, :capability, :host, j.rank, :due, shoal_now() + :wait
FROM (SELECT rank FROM job INDEXED BY job_of_host
      WHERE state = 'pending' AND due = 1 AND lane = :lane AND kind = :kind AND capability = :capability AND host = :host
      ORDER BY rank, id LIMIT 1) AS j;

-- name: host_of_job
-- Where a job that goes by host waits, and for how long its host is not to be asked.
SELECT j.lane, j.kind, j.capability, j.host, j.rank,
       coalesce((SELECT max(h.next_at, h.held_until) FROM host AS h WHERE h.origin = j.host), 0) - shoal_now() AS busy
FROM job AS j WHERE j.id = :id AND j.host IS NOT NULL;

-- name: place_at_host
-- How many jobs of a host stand before one, as far as that is worth counting.
SELECT count(*) FROM (
    SELECT 1 FROM job INDEXED BY job_of_host
    WHERE state = 'pending' AND due = 1 AND lane = :lane AND kind = :kind AND capability = :capability
          AND host IS NOT NULL AND host = :host AND rank < :rank
    LIMIT :most) AS ahead;
