-- name: add_fates
-- Record new URLs, and return the URLs that were new. The rows are sorted by key, so that two batches never wait for
-- each other. A URL that was skipped because of its path (depth 16, nofollow 21, not in a sitemap 31) and is found on a
-- different path becomes open; `was` is its previous fate in the snapshot of this statement. Known URLs are filtered
-- out before the insert, because a conflict would lock their rows, which is a write.
-- rows: key chk crawl fate
INSERT INTO fate (crawl, key, chk, fate)
SELECT g.crawl, g.key, g.chk, g.fate
FROM unnest(:key::bigint[], :chk::int[], :crawl::int[], :fate::smallint[]) AS g (key, chk, crawl, fate)
WHERE coalesce((SELECT k.fate FROM fate AS k WHERE k.crawl = g.crawl AND k.chk = g.chk AND k.key = g.key), 16) IN (16, 21, 31)
ORDER BY g.chk, g.key
ON CONFLICT (crawl, chk, key) DO UPDATE SET fate = excluded.fate WHERE fate.fate IN (16, 21, 31)
RETURNING key, chk, xmax <> 0 AS reopened,
          CASE WHEN xmax <> 0 THEN (SELECT o.fate FROM fate AS o
                                    WHERE o.crawl = fate.crawl AND o.key = fate.key AND o.chk = fate.chk) END AS was;

-- name: keep_fates
-- Record unknown URLs together with their fates.
-- rows: key chk crawl fate
INSERT INTO fate (crawl, key, chk, fate)
SELECT * FROM unnest(:crawl::int[], :key::bigint[], :chk::int[], :fate::smallint[]) AS g (crawl, key, chk, fate)
ORDER BY chk, key
ON CONFLICT (crawl, key, chk) DO NOTHING;

-- name: add_untried
-- Add new URLs to the queues of their hosts, in the order in which they were found. `seq` contains the depth.
-- rows: crawl host seq parent kind path
INSERT INTO frontier (crawl, host, seq, parent, kind, path)
SELECT crawl, host, seq + nextval('frontier_seq'), parent, kind, path
FROM unnest(:crawl::int[], :host::int[], :seq::bigint[], :parent::bigint[], :kind::smallint[], :path::text[])
     AS g (crawl, host, seq, parent, kind, path);

-- name: add_touched
-- Add URLs that must wait until a time, or that were tried in another store. `seq` contains the depth.
-- rows: crawl host seq due attempts crashes parent kind path
INSERT INTO frontier_touched (crawl, host, seq, due, attempts, crashes, parent, kind, path)
SELECT crawl, host, seq + nextval('frontier_seq'), due, attempts, crashes, parent, kind, path
FROM unnest(:crawl::int[], :host::int[], :seq::bigint[], :due::bigint[], :attempts::smallint[], :crashes::smallint[],
            :parent::bigint[], :kind::smallint[], :path::text[])
     AS g (crawl, host, seq, due, attempts, crashes, parent, kind, path);

-- name: ready_hosts
-- Return the hosts of a crawl that may be requested now and are not claimed by another live walker, longest waiting
-- first.
SELECT fh.host, fh.pages, fh.ready_at, fh.job_id, h.origin, h.next_at, h.delay, h.held_until, h.backoff, h.latency,
       h.latency_at, h.robots_at, shoal_now() AS now,
       (SELECT c.key_seed FROM crawl AS c WHERE c.number = fh.crawl) AS key_seed,
       EXISTS (SELECT 1 FROM redirect_target AS r WHERE r.crawl = :crawl) AS has_targets
FROM frontier_host AS fh CROSS JOIN LATERAL (SELECT * FROM host WHERE host.number = fh.host OFFSET 0) AS h
WHERE fh.crawl = :crawl AND fh.ready_at <= shoal_now()
      AND (fh.job_id IS NULL OR (fh.job_id = :job_id AND fh.epoch = :epoch)
           OR coalesce((SELECT job.state <> 'locked' OR job.lease_epoch <> fh.epoch FROM job WHERE job.id = fh.job_id), TRUE))
ORDER BY fh.ready_at
LIMIT :limit
FOR UPDATE OF fh SKIP LOCKED;

-- name: hosts_of_others
-- Return the hosts of a crawl that may be requested now and are claimed by another walker, longest waiting first.
SELECT fh.host, fh.pages, fh.ready_at, fh.job_id, h.origin, h.next_at, h.delay, h.held_until, h.backoff, h.latency,
       h.latency_at, h.robots_at, shoal_now() AS now,
       (SELECT c.key_seed FROM crawl AS c WHERE c.number = fh.crawl) AS key_seed,
       EXISTS (SELECT 1 FROM redirect_target AS r WHERE r.crawl = :crawl) AS has_targets
FROM frontier_host AS fh CROSS JOIN LATERAL (SELECT * FROM host WHERE host.number = fh.host OFFSET 0) AS h
WHERE fh.crawl = :crawl AND fh.ready_at <= shoal_now() AND fh.job_id <> :job_id
ORDER BY fh.ready_at
LIMIT :limit;

-- name: retries_at_hosts
-- Return due retries of hosts, up to a number per host, with the URL of the page or sitemap that led there.
-- rows: crawl host most
SELECT f.*,
       coalesce((SELECT p.url FROM page AS p WHERE p.crawl = g.crawl AND p.key = f.parent ORDER BY p.chk LIMIT 1),
                (SELECT s.url FROM sitemap AS s WHERE s.crawl = g.crawl AND s.key = f.parent LIMIT 1)) AS parent_url
FROM unnest(:crawl::int[], :host::int[], :most::int[]) AS g (crawl, host, most)
CROSS JOIN LATERAL (SELECT t.host, t.seq, t.attempts, t.crashes, t.kind, t.path, t.start, t.chain, t.parent, t.due
                    FROM frontier_touched AS t
                    WHERE t.crawl = g.crawl AND t.host = g.host AND t.job_id = '' AND t.due <= shoal_now() AND t.crashes < 2
                    ORDER BY t.due, t.seq LIMIT g.most) AS f
ORDER BY f.host, f.due, f.seq;

-- name: untried_at_hosts
-- Return the next new URLs of hosts, up to a number per host, lowest depth first, with the URL of the page or sitemap
-- that led there.
-- rows: crawl host after most
SELECT f.host, f.seq, f.kind, f.path,
       coalesce((SELECT p.url FROM page AS p WHERE p.crawl = g.crawl AND p.key = f.parent ORDER BY p.chk LIMIT 1),
                (SELECT s.url FROM sitemap AS s WHERE s.crawl = g.crawl AND s.key = f.parent LIMIT 1)) AS parent_url
FROM unnest(:crawl::int[], :host::int[], :after::bigint[], :most::int[]) AS g (crawl, host, after, most)
CROSS JOIN LATERAL (SELECT t.host, t.seq, t.kind, t.path, t.parent FROM frontier AS t
                    WHERE t.crawl = g.crawl AND t.host = g.host AND t.seq > g.after
                    ORDER BY t.seq LIMIT g.most) AS f
ORDER BY f.host, f.seq;

-- name: hold_retries
-- Assign due retries to a walker.
-- rows: crawl job_id epoch seq
UPDATE frontier_touched AS f SET job_id = g.job_id, epoch = g.epoch
FROM unnest(:crawl::int[], :job_id::text[], :epoch::bigint[], :seq::bigint[]) AS g (crawl, job_id, epoch, seq)
WHERE f.crawl = ANY(ARRAY[g.crawl]) AND f.seq = g.seq AND f.epoch = 0;

-- name: hold_untried
-- Assign new URLs to a walker; `drop_untried` removes them from the queue of their host.
-- rows: crawl job_id epoch seq host
INSERT INTO frontier_touched (crawl, job_id, epoch, seq, host, parent, kind, path)
SELECT f.crawl, g.job_id, g.epoch, f.seq, f.host, f.parent, f.kind, f.path
FROM unnest(:crawl::int[], :job_id::text[], :epoch::bigint[], :seq::bigint[], :host::int[]) AS g (crawl, job_id, epoch, seq, host)
CROSS JOIN LATERAL (SELECT * FROM frontier AS t
                    WHERE t.crawl = g.crawl AND t.host = g.host AND t.seq = g.seq OFFSET 0) AS f;

-- name: drop_untried
-- Remove new URLs from the queue of their host.
-- rows: crawl host seq
DELETE FROM frontier AS f USING unnest(:crawl::int[], :host::int[], :seq::bigint[]) AS g (crawl, host, seq)
WHERE f.crawl = ANY(ARRAY[g.crawl]) AND f.host = g.host AND f.seq = g.seq;

-- name: next_due_at_hosts
-- Return when the next waiting URL of each host is due. A host without waiting URLs has no row in the result.
-- rows: crawl host
SELECT g.host, f.due
FROM unnest(:crawl::int[], :host::int[]) AS g (crawl, host)
CROSS JOIN LATERAL (
    (SELECT 0::bigint AS due FROM frontier AS t WHERE t.crawl = g.crawl AND t.host = g.host LIMIT 1)
    UNION ALL
    (SELECT t.due FROM frontier_touched AS t
     WHERE t.crawl = g.crawl AND t.host = g.host AND t.job_id = '' AND t.due < 4611686018427387904
     ORDER BY t.due LIMIT 1)
) AS f;

-- name: set_hosts_ready
-- Set the time when each host may be requested again (NULL if it has no waiting URL), and the walker that has claimed
-- it.
-- rows: crawl host ready_at job_id epoch
UPDATE frontier_host AS f SET ready_at = g.ready_at, job_id = g.job_id, epoch = g.epoch
FROM unnest(:crawl::int[], :host::int[], :ready_at::bigint[], :job_id::text[], :epoch::bigint[])
     AS g (crawl, host, ready_at, job_id, epoch)
WHERE f.crawl = ANY(ARRAY[g.crawl]) AND f.host = g.host;

-- name: put_back_lost
-- Return URLs of lost walkers to the frontier.
-- rows: crawl job_id epoch seq crashes
UPDATE frontier_touched AS f SET job_id = '', epoch = 0, crashes = g.crashes
FROM unnest(:crawl::int[], :job_id::text[], :epoch::bigint[], :seq::bigint[], :crashes::smallint[])
     AS g (crawl, job_id, epoch, seq, crashes)
WHERE f.crawl = ANY(ARRAY[g.crawl]) AND f.seq = g.seq AND f.job_id = g.job_id
      AND f.epoch = g.epoch;

-- name: close_urls
-- Remove settled URLs of a walker from the frontier.
DELETE FROM frontier_touched AS f
USING (SELECT :crawl::int AS crawl, :job_id::text AS job_id, :epoch::bigint AS epoch, p.seq
       FROM unnest(:places::bigint[]) AS p (seq) OFFSET 0) AS g
WHERE f.crawl = ANY(ARRAY[g.crawl]) AND f.seq = g.seq AND f.job_id = g.job_id
      AND f.epoch = g.epoch
RETURNING f.seq;

-- name: set_fates
-- Set the fates of URLs.
-- rows: key chk crawl fate
UPDATE fate AS f SET fate = g.fate
FROM unnest(:crawl::int[], :key::bigint[], :chk::int[], :fate::smallint[]) AS g (crawl, key, chk, fate)
WHERE f.crawl = ANY(ARRAY[g.crawl]) AND f.chk = g.chk AND f.key = g.key;

-- name: put_back_later
-- Return taken URLs to the frontier, optionally with a time before which they are not taken again. Untried URLs without
-- such a time keep their positions.
-- rows: crawl job_id epoch seq retry_in tried
UPDATE frontier_touched AS f
SET job_id = '', epoch = 0, attempts = f.attempts + g.tried,
    due = CASE WHEN g.tried = 1 OR g.retry_in > 0 THEN shoal_now() + g.retry_in ELSE f.due END
FROM unnest(:crawl::int[], :job_id::text[], :epoch::bigint[], :seq::bigint[], :retry_in::bigint[], :tried::smallint[])
     AS g (crawl, job_id, epoch, seq, retry_in, tried)
WHERE f.crawl = ANY(ARRAY[g.crawl]) AND f.seq = g.seq AND f.job_id = g.job_id
      AND f.epoch = g.epoch
RETURNING f.host;

-- name: suspect_waiting
-- Return the last URL in the queue that was in flight in two crashes. URLs at hosts that are on hold or locked by
-- another commit are ignored.
SELECT f.host, f.seq, f.attempts, f.crashes, f.kind, f.path, f.start, f.chain, shoal_now() AS now, fh.pages,
       EXISTS (SELECT 1 FROM redirect_target AS r WHERE r.crawl = :crawl) AS has_targets,
       (SELECT h.origin FROM host AS h WHERE h.number = f.host) AS origin,
       (SELECT c.key_seed FROM crawl AS c WHERE c.number = f.crawl) AS key_seed,
       coalesce((SELECT p.url FROM page AS p WHERE p.crawl = f.crawl AND p.key = f.parent ORDER BY p.chk LIMIT 1),
                (SELECT s.url FROM sitemap AS s WHERE s.crawl = f.crawl AND s.key = f.parent LIMIT 1)) AS parent_url
FROM frontier_touched AS f JOIN frontier_host AS fh ON fh.crawl = f.crawl AND fh.host = f.host
WHERE f.crawl = :crawl AND f.crashes >= 2 AND f.job_id = '' AND f.due <= shoal_now()
      AND coalesce((SELECT h.held_until FROM host AS h WHERE h.number = f.host), 0) <= shoal_now()
ORDER BY f.seq DESC
LIMIT 1
FOR UPDATE OF f, fh SKIP LOCKED;

-- name: lost_urls
-- Return the taken URLs whose walker has lost its job.
SELECT host, job_id, epoch, seq, crashes
FROM frontier_touched
WHERE crawl = :crawl AND job_id > ''
      AND coalesce((SELECT job.state <> 'locked' OR job.lease_epoch <> frontier_touched.epoch FROM job
                    WHERE job.id = frontier_touched.job_id), TRUE)
ORDER BY job_id, epoch, seq;

-- name: wake_hosts
-- Mark hosts as ready now.
-- rows: crawl host
INSERT INTO frontier_host (crawl, host, ready_at)
SELECT crawl, host, shoal_now() FROM unnest(:crawl::int[], :host::int[]) AS g (crawl, host) ORDER BY crawl, host
ON CONFLICT (crawl, host) DO UPDATE SET ready_at = excluded.ready_at
WHERE frontier_host.ready_at IS NULL OR frontier_host.ready_at > excluded.ready_at;

-- name: add_skips
-- Raise one walker's counts of skip reasons.
-- rows: crawl holder reason count
INSERT INTO crawl_skip (crawl, holder, reason, count)
SELECT * FROM unnest(:crawl::int[], :holder::text[], :reason::text[], :count::bigint[]) AS g (crawl, holder, reason, count)
ORDER BY crawl, holder, reason
ON CONFLICT (crawl, holder, reason) DO UPDATE SET count = crawl_skip.count + excluded.count;

-- name: quarantine_urls
-- Move taken URLs to quarantine.
-- rows: crawl job_id epoch seq
UPDATE frontier_touched AS f SET job_id = '', epoch = 0, due = 4611686018427387904
FROM unnest(:crawl::int[], :job_id::text[], :epoch::bigint[], :seq::bigint[]) AS g (crawl, job_id, epoch, seq)
WHERE f.crawl = ANY(ARRAY[g.crawl]) AND f.seq = g.seq AND f.job_id = g.job_id
      AND f.epoch = g.epoch
RETURNING f.seq;

-- name: free_urls
-- Release URLs from quarantine.
-- rows: crawl seq
UPDATE frontier_touched AS f SET due = 0 FROM unnest(:crawl::int[], :seq::bigint[]) AS g (crawl, seq)
WHERE f.crawl = ANY(ARRAY[g.crawl]) AND f.seq = g.seq AND f.epoch = 0;

-- name: close_host
-- Close the new URLs of a host that has reached its page limit.
DELETE FROM frontier
WHERE ctid = ANY(ARRAY(SELECT ctid FROM frontier WHERE crawl = :crawl AND host = :host ORDER BY seq LIMIT :limit))
RETURNING kind, path, NULL AS start, NULL AS chain;

-- name: close_retries_at_host
-- Close the retries of a host that has reached its page limit.
DELETE FROM frontier_touched
WHERE ctid = ANY(ARRAY(SELECT ctid FROM frontier_touched
                       WHERE crawl = :crawl AND host = :host AND job_id = '' AND due < 4611686018427387904
                       ORDER BY due, seq LIMIT :limit))
RETURNING kind, path, start, chain;

-- name: count_host_pages
-- Add to the page counts of hosts.
-- rows: crawl host pages
UPDATE frontier_host AS f SET pages = f.pages + g.pages
FROM unnest(:crawl::int[], :host::int[], :pages::bigint[]) AS g (crawl, host, pages)
WHERE f.crawl = ANY(ARRAY[g.crawl]) AND f.host = g.host;

-- name: lock_hosts
-- Return the rows of these hosts, locked in the order of the host numbers.
SELECT f.host FROM (SELECT u.host FROM unnest(:hosts::int[]) AS u (host) ORDER BY u.host) AS g
CROSS JOIN LATERAL (SELECT t.host FROM frontier_host AS t WHERE t.crawl = :crawl AND t.host = g.host FOR NO KEY UPDATE) AS f;

-- name: lock_traps
-- Return the decisions about these patterns, locked until this commit ends. The lock is not a shared lock, because the
-- same commit may update the rows later.
SELECT pattern, state FROM trap WHERE crawl = :crawl AND pattern = ANY(:patterns::text[])
ORDER BY pattern FOR NO KEY UPDATE;

-- name: lock_one_host
-- Return the row of a host, unless another commit has locked it.
SELECT host, pages FROM frontier_host WHERE crawl = :crawl AND host = :host FOR UPDATE SKIP LOCKED;

-- name: unclaim_hosts
-- Release the claims of a walker on hosts.
UPDATE frontier_host SET job_id = NULL, epoch = NULL WHERE ctid = ANY(ARRAY(
    SELECT f.place FROM unnest(:hosts::int[]) AS g (host)
    CROSS JOIN LATERAL (SELECT t.ctid AS place FROM frontier_host AS t
                        WHERE t.crawl = :crawl AND t.host = g.host OFFSET 0) AS f));

-- name: quarantined_at_host
-- The URLs of a host that are in quarantine.
SELECT seq, kind, path FROM frontier_touched
WHERE crawl = :crawl AND host = :host AND job_id = '' AND due = 4611686018427387904;

-- name: landed
-- Return the final URLs of pages that redirected and are HTML or XML (which may be a sitemap).
SELECT f.final_url FROM unnest(:keys::bigint[]) AS k (value)
CROSS JOIN LATERAL (SELECT p.url, p.final_url, p.content_hash, p.content_type FROM page AS p
                    WHERE p.crawl = :crawl AND p.key = k.value ORDER BY p.chk OFFSET 0) AS f
WHERE f.final_url <> f.url AND (f.content_hash IS NOT NULL OR f.content_type LIKE '%xml%');

-- name: targets_among
-- Return the given keys that are redirect targets, with their fates.
SELECT r.key, r.chk, r.fate FROM unnest(:keys::bigint[]) AS k (value)
CROSS JOIN LATERAL (SELECT t.key, t.chk, t.fate FROM redirect_target AS t
                    WHERE t.crawl = :crawl AND t.key = k.value ORDER BY t.chk OFFSET 0) AS r;

-- name: prepare_hosts
-- Insert rows for hosts that are new to the crawl, so that they can be locked.
-- rows: crawl host
INSERT INTO frontier_host (crawl, host)
SELECT crawl, host FROM unnest(:crawl::int[], :host::int[]) AS g (crawl, host) ORDER BY crawl, host
ON CONFLICT (crawl, host) DO NOTHING;

-- name: held_among
-- Return the given positions that a walker has taken.
SELECT seq FROM frontier_touched
WHERE crawl = :crawl AND job_id = :job_id AND job_id > '' AND epoch = :epoch AND seq = ANY(:places::bigint[]);

-- name: claim_fates
-- Record unknown URLs, and return the URLs that were unknown. If another walker records the same URL, wait for that
-- walker's commit.
-- rows: key chk crawl fate
INSERT INTO fate (crawl, key, chk, fate)
SELECT g.crawl, g.key, g.chk, g.fate
FROM unnest(:key::bigint[], :chk::int[], :crawl::int[], :fate::smallint[]) AS g (key, chk, crawl, fate)
ORDER BY g.chk, g.key
ON CONFLICT (crawl, chk, key) DO NOTHING
RETURNING key, chk;

-- name: lock_targets
-- Return the fates of URLs, and for each URL, the URL that redirects to it. The rows are locked until this commit ends,
-- in the given order, which is by check and key.
SELECT f.key, f.chk, f.fate, r.via
FROM unnest(:keys::bigint[], :checks::int[]) AS g (key, chk)
CROSS JOIN LATERAL (SELECT t.key, t.chk, t.fate FROM fate AS t
                    WHERE t.crawl = :crawl AND t.chk = g.chk AND t.key = g.key LIMIT 1 FOR NO KEY UPDATE) AS f
LEFT JOIN LATERAL (SELECT t.via FROM redirect_target AS t
                   WHERE t.crawl = :crawl AND t.key = f.key AND t.chk = f.chk LIMIT 1) AS r ON TRUE;

-- name: taken_pages_at
-- Return the pages of these hosts that walkers have taken, without pages that are being redirected.
SELECT host, path FROM frontier_touched
WHERE crawl = :crawl AND job_id > '' AND kind = 0 AND start IS NULL AND host = ANY(:hosts::int[]);

-- name: redirected_among
-- Return the given URLs that are being redirected.
SELECT g.url AS start FROM unnest(:urls::text[]) AS g (url)
WHERE (SELECT 1 FROM frontier_touched AS f
       WHERE f.crawl = :crawl AND f.start IS NOT NULL AND f.start >= g.url AND f.start <= g.url ORDER BY f.start LIMIT 1) = 1;

-- name: redirect_states
-- Return the fates of URLs; for each URL, the URL that redirects to it, and its own redirects so far.
SELECT f.key, f.chk, f.fate, r.via, o.chain
FROM unnest(:keys::bigint[], :checks::int[], :urls::text[]) AS g (key, chk, url)
CROSS JOIN LATERAL (SELECT t.key, t.chk, t.fate FROM fate AS t
                    WHERE t.crawl = :crawl AND t.chk = g.chk AND t.key = g.key LIMIT 1) AS f
LEFT JOIN LATERAL (SELECT t.via FROM redirect_target AS t
                   WHERE t.crawl = :crawl AND t.key = f.key AND t.chk = f.chk LIMIT 1) AS r ON TRUE
LEFT JOIN LATERAL (SELECT t.chain FROM frontier_touched AS t
                   WHERE t.crawl = :crawl AND t.start IS NOT NULL AND t.start >= g.url AND t.start <= g.url
                   ORDER BY t.start LIMIT 1) AS o ON TRUE;

-- name: forget_targets
-- Forget that other URLs redirect to these URLs.
-- rows: key chk crawl
DELETE FROM redirect_target AS r
USING unnest(:crawl::int[], :key::bigint[], :chk::int[]) AS g (crawl, key, chk)
WHERE r.crawl = ANY(ARRAY[g.crawl]) AND r.key = g.key AND r.chk = g.chk;

-- name: keep_targets
-- Store redirect targets.
-- rows: key chk crawl fate url via
INSERT INTO redirect_target (crawl, key, chk, fate, url, via)
SELECT g.crawl, g.key, g.chk, g.fate, g.url, g.via
FROM unnest(:key::bigint[], :chk::int[], :crawl::int[], :fate::smallint[], :url::text[], :via::text[])
     AS g (key, chk, crawl, fate, url, via)
ORDER BY g.key, g.chk
ON CONFLICT (crawl, key, chk) DO UPDATE SET fate = excluded.fate, via = excluded.via;

-- name: end_targets
-- Set the fates of redirect targets.
-- rows: key chk crawl fate
UPDATE redirect_target AS r SET fate = g.fate
FROM unnest(:crawl::int[], :key::bigint[], :chk::int[], :fate::smallint[]) AS g (crawl, key, chk, fate)
WHERE r.crawl = ANY(ARRAY[g.crawl]) AND r.key = g.key AND r.chk = g.chk;

-- name: set_settled_fates
-- Set the fates of URLs that are not waiting; return the changed rows.
-- rows: key chk crawl fate
UPDATE fate AS f SET fate = g.fate
FROM unnest(:crawl::int[], :key::bigint[], :chk::int[], :fate::smallint[]) AS g (crawl, key, chk, fate)
WHERE f.crawl = ANY(ARRAY[g.crawl]) AND f.key = g.key AND f.chk = g.chk AND f.fate <> 0
RETURNING f.key, f.chk, f.fate;

-- name: move_to_redirect_target
-- Move taken URLs to their redirect targets. They are fetched as soon as possible, or wait until a time.
-- rows: crawl job_id epoch seq host path start chain wait
UPDATE frontier_touched AS f
SET job_id = '', epoch = 0, due = CASE WHEN g.wait > 0 THEN shoal_now() + g.wait ELSE 0 END, host = g.host, path = g.path,
    start = g.start, chain = g.chain
FROM unnest(:crawl::int[], :job_id::text[], :epoch::bigint[], :seq::bigint[], :host::int[], :path::text[], :start::text[],
            :chain::bytea[], :wait::bigint[]) AS g (crawl, job_id, epoch, seq, host, path, start, chain, wait)
WHERE f.crawl = ANY(ARRAY[g.crawl]) AND f.seq = g.seq AND f.job_id = g.job_id AND f.epoch = g.epoch
RETURNING f.seq;

-- name: free_host_claims
-- Release the hosts that a walker has claimed.
UPDATE frontier_host SET job_id = NULL, epoch = NULL
WHERE crawl = :crawl AND host = ANY(ARRAY(SELECT t.host FROM frontier_host AS t
                                          WHERE t.crawl = :crawl AND t.job_id = :job_id AND t.epoch = :epoch
                                          ORDER BY t.host FOR NO KEY UPDATE));
