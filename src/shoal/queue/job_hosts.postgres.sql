-- name: add_job_hosts
-- Record at which hosts these jobs wait. An existing row is locked until our commit, so a transaction that takes the
-- row later sees these jobs. A row that another commit has locked is ignored, so that we never wait.
INSERT INTO job_host (lane, kind, capability, host, rank)
SELECT n.lane, n.kind, n.capability, n.host, n.rank
FROM (SELECT lane, kind, capability, host, min(rank) AS rank FROM job
      WHERE id = ANY(:ids::text[]) AND CASE WHEN state = 'pending' AND due = 1 THEN host IS NOT NULL ELSE FALSE END
      GROUP BY lane, kind, capability, host) AS n
LEFT JOIN LATERAL (SELECT h.number FROM job_host AS h
                   WHERE h.lane = n.lane AND h.kind = n.kind AND h.capability = n.capability AND h.host = n.host
                         AND h.rank <= n.rank
                   LIMIT 1 FOR SHARE SKIP LOCKED) AS known ON TRUE
WHERE known.number IS NULL;

-- name: make_hosts_ready
-- Mark hosts as ready that may be requested now or within :ahead. Also mark hosts whose time is further away than
-- possible (:longest), because the clock was set back.
UPDATE job_host SET due = 1
WHERE number = ANY(ARRAY(SELECT number FROM job_host WHERE due = 0 AND ready_at <= shoal_now() + :ahead::bigint
                         ORDER BY ready_at LIMIT :limit FOR UPDATE SKIP LOCKED)
                   || ARRAY(SELECT number FROM job_host WHERE due = 0 AND ready_at > shoal_now() + :longest::bigint
                            ORDER BY ready_at LIMIT :limit FOR UPDATE SKIP LOCKED));

-- name: take_ready_hosts
-- Take the hosts with the best jobs and return their states: lock all rows of each host (up to :most), and delete all
-- but one of them. Hosts that a different commit has taken are skipped, and also hosts at which this commit has already
-- :looked.
WITH best AS MATERIALIZED (
    SELECT number, host, rank FROM job_host
    WHERE due = 1 AND lane = :lane AND kind = :kind AND capability = :capability AND NOT host = ANY(:looked::text[])
    ORDER BY rank, number LIMIT :limit FOR UPDATE SKIP LOCKED
), rest AS MATERIALIZED (
    SELECT r.number, b.host, r.rank FROM (SELECT DISTINCT best.host FROM best) AS b
    CROSS JOIN LATERAL (SELECT h.number, h.rank FROM job_host AS h
                        WHERE h.lane = :lane AND h.kind = :kind AND h.capability = :capability AND h.host = b.host
                        LIMIT :most FOR UPDATE SKIP LOCKED) AS r
), locked AS MATERIALIZED (
    SELECT l.number, l.host, l.rank, min(l.number) OVER (PARTITION BY l.host) AS kept
    FROM (SELECT * FROM best UNION ALL SELECT * FROM rest) AS l
), dropped AS (
    DELETE FROM job_host WHERE number = ANY(ARRAY(SELECT locked.number FROM locked WHERE locked.number <> locked.kept))
)
SELECT t.number, t.host, t.rank, h.next_at, h.delay, h.held_until, h.backoff, h.latency, h.latency_at, h.robots_at,
       shoal_now() AS now
FROM (SELECT locked.kept AS number, locked.host, min(locked.rank) AS rank FROM locked GROUP BY 1, 2) AS t
LEFT JOIN LATERAL (SELECT * FROM host WHERE host.origin = t.host LIMIT 1) AS h ON TRUE
ORDER BY t.rank, t.host;

-- name: waiting_at_hosts
-- Return the best waiting jobs of these hosts, up to a number per host.
-- rows: lane kind capability host count
SELECT j.id, j.rank, g.lane, g.kind, g.capability, g.host
FROM unnest(:lane::text[], :kind::text[], :capability::text[], :host::text[], :count::bigint[])
     AS g (lane, kind, capability, host, count)
CROSS JOIN LATERAL (SELECT job.id, job.rank FROM job
                    WHERE job.state = 'pending' AND job.due = 1 AND job.lane = g.lane AND job.kind = g.kind
                          AND job.capability = g.capability AND job.host IS NOT NULL AND job.host = g.host
                    ORDER BY job.rank, job.id LIMIT g.count) AS j;

-- name: lease_these_jobs
-- Grant the jobs among these that still wait and are not locked by a different commit.
UPDATE job
SET state = 'locked', state_reason = NULL, lease_epoch = lease_epoch + 1, lease_holder = :holder,
    lease_until = t.now + CASE WHEN :by_job = 1 THEN coalesce(job.lock_ttl, :ttl::bigint) ELSE :ttl::bigint END,
    granted_at = t.now, offered_session = NULL, offered_until = NULL
FROM (SELECT shoal_now() AS now) AS t
WHERE job.id = ANY(ARRAY(SELECT j.id FROM job AS j
                         WHERE j.id = ANY(:ids::text[]) AND CASE WHEN j.state = 'pending' THEN j.due = 1 ELSE FALSE END
                         FOR UPDATE SKIP LOCKED))
RETURNING job.id, job.lease_epoch, job.kind, job.run_id, job.payload, job.attempts, job.max_attempts, job.crash_count,
          t.now - job.created_at AS waited, job.scopes, job.lane, job.rank, job.capability, job.priority,
          job.lease_until - job.granted_at AS ttl, job.host;

-- name: put_back_hosts
-- Record when to check each of these hosts again, and delete the rows of hosts at which no job waits. An earlier
-- statement of this commit locked the rows: we see every job that was recorded on one of the rows before the lock, and
-- a transaction that stores a job after the lock has to insert a new row. A row that would not change is not written.
-- rows: number lane kind capability host due wait
WITH checked AS MATERIALIZED (
    SELECT g.number, g.due, g.wait, j.rank
    FROM unnest(:number::bigint[], :lane::text[], :kind::text[], :capability::text[], :host::text[], :due::smallint[],
                :wait::bigint[]) AS g (number, lane, kind, capability, host, due, wait)
    LEFT JOIN LATERAL (SELECT job.rank FROM job
                       WHERE job.state = 'pending' AND job.due = 1 AND job.lane = g.lane AND job.kind = g.kind
                             AND job.capability = g.capability AND job.host IS NOT NULL AND job.host = g.host
                       ORDER BY job.rank, job.id LIMIT 1) AS j ON TRUE
), dropped AS (
    DELETE FROM job_host WHERE number = ANY(ARRAY(SELECT checked.number FROM checked WHERE checked.rank IS NULL))
)
UPDATE job_host AS h SET rank = c.rank, due = c.due, ready_at = shoal_now() + c.wait
FROM checked AS c
WHERE h.number = ANY(:number::bigint[]) AND h.number = c.number AND c.rank IS NOT NULL
      AND (c.due = 0 OR h.due = 0 OR h.rank <> c.rank);

-- name: job_hosts_after
-- Return the next rows of hosts, and for each host whether a job waits there.
SELECT h.number,
       (SELECT 1 FROM job AS j
        WHERE j.state = 'pending' AND j.due = 1 AND j.lane = h.lane AND j.kind = h.kind AND j.capability = h.capability
              AND j.host IS NOT NULL AND j.host = h.host
        LIMIT 1) IS NOT NULL AS waits
FROM job_host AS h WHERE h.number > :number ORDER BY h.number LIMIT :limit;

-- name: lock_job_hosts
-- Lock these rows of hosts and return the locked rows; rows that a different commit has locked are skipped.
SELECT number FROM job_host WHERE number = ANY(:numbers::bigint[]) FOR UPDATE SKIP LOCKED;

-- name: drop_idle_job_hosts
-- Delete these rows, except if a job waits at the host. An earlier statement of this commit locked the rows, so we see
-- the jobs that were recorded on them before.
DELETE FROM job_host WHERE number = ANY(ARRAY(
    SELECT h.number FROM job_host AS h
    WHERE h.number = ANY(:numbers::bigint[])
          AND (SELECT 1 FROM job AS j
               WHERE j.state = 'pending' AND j.due = 1 AND j.lane = h.lane AND j.kind = h.kind
                     AND j.capability = h.capability AND j.host IS NOT NULL AND j.host = h.host
               LIMIT 1) IS NULL));

-- name: host_of_job
-- Return where a job that is leased by host waits, and for how long its host may not be requested.
SELECT j.lane, j.kind, j.capability, j.host, j.rank,
       coalesce((SELECT greatest(h.next_at, h.held_until) FROM host AS h WHERE h.origin = j.host), 0) - shoal_now() AS busy
FROM job AS j WHERE j.id = :id AND j.host IS NOT NULL;

-- name: queue_position_at_host
-- Return how many jobs of a host are ahead of a given job, up to a maximum.
SELECT count(*) FROM (
    SELECT 1 FROM job
    WHERE state = 'pending' AND due = 1 AND lane = :lane AND kind = :kind AND capability = :capability
          AND host IS NOT NULL AND host = :host AND rank < :rank
    LIMIT :most) AS ahead;

-- name: waiting_page_jobs
-- Return how many page jobs with a capability wait in the shared lane, up to a maximum. Jobs that wait for their
-- host's rate limit do not count, because a slow host must not stop the policies of others.
SELECT count(*) AS count FROM (
    SELECT 1 FROM (SELECT DISTINCT ready.host
                   FROM (SELECT job_host.host FROM job_host
                         WHERE due = 1 AND lane = 'shared' AND kind = 'page' AND capability = :capability
                         ORDER BY rank, number LIMIT :most) AS ready
                   WHERE (SELECT l.number FROM job_host AS l
                          WHERE l.lane = 'shared' AND l.kind = 'page' AND l.capability = :capability AND l.host = ready.host
                                AND CASE WHEN l.due = 0 THEN TRUE ELSE FALSE END LIMIT 1) IS NULL) AS free_hosts
    CROSS JOIN LATERAL (SELECT 1 FROM job AS j
                        WHERE j.state = 'pending' AND j.due = 1 AND j.lane = 'shared' AND j.kind = 'page'
                              AND j.capability = :capability AND j.host IS NOT NULL AND j.host = free_hosts.host
                        LIMIT :most) AS w
    LIMIT :most) AS found;
