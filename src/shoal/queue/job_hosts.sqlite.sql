-- name: add_job_hosts
-- Record at which hosts these jobs wait, unless the host has a row already.
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
-- Mark hosts as ready that may be requested now or within :ahead. Also mark hosts whose time is further away than
-- possible (:longest), because the clock was set back.
UPDATE job_host SET due = 1
WHERE number IN (SELECT * FROM (SELECT number FROM job_host INDEXED BY job_host_later
                                WHERE due = 0 AND ready_at <= (SELECT shoal_now()) + :ahead ORDER BY ready_at LIMIT :limit)
                 UNION ALL
                 SELECT * FROM (SELECT number FROM job_host INDEXED BY job_host_later
                                WHERE due = 0 AND ready_at > (SELECT shoal_now()) + :longest ORDER BY ready_at LIMIT :limit));

-- name: take_ready_hosts
-- Return the hosts with the best jobs, and their states. The hosts have no number, because `drop_job_hosts` deletes
-- their rows.
SELECT 0 AS number, ready.host, min(ready.rank) AS rank, h.next_at, h.delay, h.held_until, h.backoff, h.latency, h.latency_at, h.robots_at,
       (SELECT shoal_now()) AS now
FROM (SELECT host, rank FROM job_host INDEXED BY job_host_ready
      WHERE due = 1 AND lane = :lane AND kind = :kind AND capability = :capability
      ORDER BY rank, number LIMIT :limit) AS ready
LEFT JOIN host AS h ON h.origin = ready.host
GROUP BY ready.host
ORDER BY min(ready.rank), ready.host;

-- name: drop_job_hosts
-- Delete the rows of a host, up to a number.
-- rows: lane kind capability host most
DELETE FROM job_host
WHERE number IN (SELECT number FROM job_host INDEXED BY job_host_rows
                 WHERE lane = :lane AND kind = :kind AND capability = :capability AND host = :host
                 ORDER BY due DESC LIMIT :most);

-- name: waiting_at_hosts
-- Return the best waiting jobs of these hosts, up to a number per host.
-- rows: lane kind capability host count
SELECT id, rank, lane, kind, capability, host FROM job INDEXED BY job_of_host
WHERE state = 'pending' AND due = 1 AND lane = :lane AND kind = :kind AND capability = :capability AND host = :host
ORDER BY rank, id LIMIT :count;

-- name: lease_these_jobs
-- Grant the jobs among these that still wait.
UPDATE job
SET state = 'locked', state_reason = NULL, lease_epoch = lease_epoch + 1, lease_holder = :holder,
    lease_until = (SELECT shoal_now()) + CASE WHEN :by_job = 1 THEN coalesce(lock_ttl, :ttl) ELSE :ttl END,
    granted_at = (SELECT shoal_now()), offered_session = NULL, offered_until = NULL
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'pending' AND +due = 1
RETURNING id, lease_epoch, kind, run_id, payload, attempts, max_attempts, crash_count, granted_at - created_at AS waited,
          scopes, lane, rank, capability, priority, CASE WHEN :by_job = 1 THEN coalesce(lock_ttl, :ttl) ELSE :ttl END AS ttl,
          host;

-- name: put_back_hosts
-- Record at which of these hosts jobs still wait, and when to check each host again.
-- rows: number lane kind capability host due wait
INSERT INTO job_host (lane, kind, capability, host, rank, due, ready_at)
SELECT :lane, :kind, :capability, :host, j.rank, :due, shoal_now() + :wait
FROM (SELECT rank FROM job INDEXED BY job_of_host
      WHERE state = 'pending' AND due = 1 AND lane = :lane AND kind = :kind AND capability = :capability AND host = :host
      ORDER BY rank, id LIMIT 1) AS j;

-- name: job_hosts_after
-- Return the next rows of hosts, and for each host whether a job waits there.
SELECT h.number,
       EXISTS (SELECT 1 FROM job AS j INDEXED BY job_of_host
               WHERE j.state = 'pending' AND j.due = 1 AND j.lane = h.lane AND j.kind = h.kind
                     AND j.capability = h.capability AND j.host = h.host) AS waits
FROM job_host AS h WHERE h.number > :number ORDER BY h.number LIMIT :limit;

-- name: lock_job_hosts
-- Return these rows of hosts. The write lock is held already.
SELECT value AS number FROM json_each(:numbers);

-- name: drop_idle_job_hosts
-- Delete rows of hosts.
DELETE FROM job_host WHERE number IN (SELECT value FROM json_each(:numbers));

-- name: host_of_job
-- Return where a job that is leased by host waits, and for how long its host may not be requested.
SELECT j.lane, j.kind, j.capability, j.host, j.rank,
       coalesce((SELECT max(h.next_at, h.held_until) FROM host AS h WHERE h.origin = j.host), 0) - shoal_now() AS busy
FROM job AS j WHERE j.id = :id AND j.host IS NOT NULL;

-- name: queue_position_at_host
-- Return how many jobs of a host are ahead of a given job, up to a maximum.
SELECT count(*) FROM (
    SELECT 1 FROM job INDEXED BY job_of_host
    WHERE state = 'pending' AND due = 1 AND lane = :lane AND kind = :kind AND capability = :capability
          AND host IS NOT NULL AND host = :host AND rank < :rank
    LIMIT :most) AS ahead;

-- name: waiting_page_jobs
-- Return how many page jobs with a capability wait in the shared lane, up to a maximum. Jobs that wait for their
-- host's rate limit do not count, because a slow host must not stop the policies of others.
SELECT count(*) AS count FROM (
    SELECT 1 FROM (SELECT DISTINCT ready.host
                   FROM (SELECT host FROM job_host INDEXED BY job_host_ready
                         WHERE due = 1 AND lane = 'shared' AND kind = 'page' AND capability = :capability
                         ORDER BY rank, number LIMIT :most) AS ready
                   WHERE NOT EXISTS (SELECT 1 FROM job_host AS l INDEXED BY job_host_rows
                                     WHERE l.lane = 'shared' AND l.kind = 'page' AND l.capability = :capability
                                           AND l.host = ready.host AND l.due = 0)) AS free_hosts
    CROSS JOIN job AS j INDEXED BY job_of_host
    WHERE j.state = 'pending' AND j.due = 1 AND j.lane = 'shared' AND j.kind = 'page' AND j.capability = :capability
          AND j.host = free_hosts.host
    LIMIT :most);
