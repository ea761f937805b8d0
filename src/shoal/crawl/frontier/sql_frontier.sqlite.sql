-- name: known_keys
-- Return the given keys that are known. CROSS JOIN makes the keys the outer loop.
SELECT f.key, f.chk, f.fate FROM json_each(:keys) AS k CROSS JOIN fate AS f ON f.crawl = :crawl AND f.key = k.value;

-- name: reserve_seq
-- Take a block of sequence numbers; return the first number of the block.
UPDATE frontier_seq SET value = value + :count RETURNING value - :count + 1;

-- name: insert_fates
-- Record new URLs.
-- rows: key chk crawl fate
INSERT INTO fate (crawl, key, chk, fate) VALUES (:crawl, :key, :chk, :fate);

-- name: keep_fates
-- Record unknown URLs together with their fates.
-- rows: key chk crawl fate
INSERT INTO fate (crawl, key, chk, fate) VALUES (:crawl, :key, :chk, :fate) ON CONFLICT (crawl, key, chk) DO NOTHING;

-- name: add_untried
-- Add new URLs to the queues of their hosts, in the order in which they were found. `seq` contains the depth.
-- rows: crawl host seq parent kind path
INSERT INTO frontier (crawl, host, seq, parent, kind, path) VALUES (:crawl, :host, :seq, :parent, :kind, :path);

-- name: add_touched
-- Add URLs that must wait until a time, or that were tried in another store. `seq` contains the depth.
-- rows: crawl host seq due attempts crashes parent kind path
INSERT INTO frontier_touched (crawl, host, seq, due, attempts, crashes, parent, kind, path)
VALUES (:crawl, :host, :seq, :due, :attempts, :crashes, :parent, :kind, :path);

-- name: ready_hosts
-- Return the hosts of a crawl that may be requested now and are not claimed by another live walker, longest waiting
-- first.
SELECT fh.host, fh.pages, fh.ready_at, fh.job_id, h.origin, h.next_at, h.delay, h.held_until, h.backoff, h.latency,
       h.latency_at, h.robots_at, shoal_now() AS now,
       (SELECT c.key_seed FROM crawl AS c WHERE c.number = fh.crawl) AS key_seed,
       EXISTS (SELECT 1 FROM redirect_target AS r WHERE r.crawl = :crawl) AS has_targets
FROM frontier_host AS fh JOIN host AS h ON h.number = fh.host
WHERE fh.crawl = :crawl AND fh.ready_at <= shoal_now()
      AND (fh.job_id IS NULL OR (fh.job_id = :job_id AND fh.epoch = :epoch)
           OR NOT EXISTS (SELECT 1 FROM job WHERE job.id = fh.job_id AND job.state = 'locked' AND job.lease_epoch = fh.epoch))
ORDER BY fh.ready_at
LIMIT :limit;

-- name: hosts_of_others
-- Return the hosts of a crawl that may be requested now and are claimed by another walker, longest waiting first.
SELECT fh.host, fh.pages, fh.ready_at, fh.job_id, h.origin, h.next_at, h.delay, h.held_until, h.backoff, h.latency,
       h.latency_at, h.robots_at, shoal_now() AS now,
       (SELECT c.key_seed FROM crawl AS c WHERE c.number = fh.crawl) AS key_seed,
       EXISTS (SELECT 1 FROM redirect_target AS r WHERE r.crawl = :crawl) AS has_targets
FROM frontier_host AS fh JOIN host AS h ON h.number = fh.host
WHERE fh.crawl = :crawl AND fh.ready_at <= shoal_now() AND fh.job_id <> :job_id
ORDER BY fh.ready_at
LIMIT :limit;

-- name: retries_at_hosts
-- Return due retries of hosts, up to a number per host, with the URL of the page or sitemap that led there.
-- rows: crawl host most
SELECT f.host, f.seq, f.attempts, f.crashes, f.kind, f.path, f.start, f.chain,
       coalesce((SELECT p.url FROM page AS p WHERE p.crawl = f.crawl AND p.key = f.parent ORDER BY p.chk LIMIT 1),
                (SELECT s.url FROM sitemap AS s WHERE s.crawl = f.crawl AND s.key = f.parent LIMIT 1)) AS parent_url
FROM frontier_touched AS f INDEXED BY frontier_again
WHERE f.crawl = :crawl AND f.host = :host AND f.job_id = '' AND f.due <= shoal_now() AND f.crashes < 2
ORDER BY f.due, f.seq
LIMIT :most;

-- name: untried_at_hosts
-- Return the next new URLs of hosts, up to a number per host, lowest depth first, with the URL of the page or sitemap
-- that led there.
-- rows: crawl host after most
SELECT f.host, f.seq, f.kind, f.path,
       coalesce((SELECT p.url FROM page AS p WHERE p.crawl = f.crawl AND p.key = f.parent ORDER BY p.chk LIMIT 1),
                (SELECT s.url FROM sitemap AS s WHERE s.crawl = f.crawl AND s.key = f.parent LIMIT 1)) AS parent_url
FROM frontier AS f
WHERE f.crawl = :crawl AND f.host = :host AND f.seq > :after
ORDER BY f.seq
LIMIT :most;

-- name: hold_retries
-- Assign due retries to a walker.
-- rows: crawl job_id epoch seq
UPDATE frontier_touched SET job_id = :job_id, epoch = :epoch
WHERE crawl = :crawl AND seq = :seq AND epoch = 0;

-- name: hold_untried
-- Assign new URLs to a walker; `drop_untried` removes them from the queue of their host.
-- rows: crawl job_id epoch seq host
INSERT INTO frontier_touched (crawl, job_id, epoch, seq, host, parent, kind, path)
SELECT crawl, :job_id, :epoch, seq, host, parent, kind, path FROM frontier WHERE crawl = :crawl AND host = :host AND seq = :seq;

-- name: drop_untried
-- Remove new URLs from the queue of their host.
-- rows: crawl host seq
DELETE FROM frontier WHERE crawl = :crawl AND host = :host AND seq = :seq;

-- name: next_due_at_hosts
-- Return when the next waiting URL of each host is due. A host without waiting URLs has no row in the result.
-- rows: crawl host
SELECT :host AS host, 0 AS due WHERE EXISTS (SELECT 1 FROM frontier WHERE crawl = :crawl AND host = :host)
UNION ALL
SELECT * FROM (SELECT host, due FROM frontier_touched INDEXED BY frontier_again
               WHERE crawl = :crawl AND host = :host AND job_id = '' AND due < 4611686018427387904
               ORDER BY due LIMIT 1);

-- name: set_hosts_ready
-- Set the time when each host may be requested again (NULL if it has no waiting URL), and the walker that has claimed
-- it.
-- rows: crawl host ready_at job_id epoch
UPDATE frontier_host SET ready_at = :ready_at, job_id = :job_id, epoch = :epoch WHERE crawl = :crawl AND host = :host;

-- name: put_back_lost
-- Return URLs of lost walkers to the frontier.
-- rows: crawl job_id epoch seq crashes
UPDATE frontier_touched SET job_id = '', epoch = 0, crashes = :crashes
WHERE crawl = :crawl AND seq = :seq AND job_id = :job_id AND epoch = :epoch;

-- name: close_urls
-- Remove settled URLs of a walker from the frontier.
DELETE FROM frontier_touched
WHERE crawl = :crawl AND seq IN (SELECT value FROM json_each(:places)) AND job_id = :job_id AND epoch = :epoch
RETURNING seq;

-- name: set_fates
-- Set the fates of URLs.
-- rows: key chk crawl fate
UPDATE fate SET fate = :fate WHERE crawl = :crawl AND key = :key AND chk = :chk;

-- name: put_back_later
-- Return taken URLs to the frontier, optionally with a time before which they are not taken again. Untried URLs without
-- such a time keep their positions.
-- rows: crawl job_id epoch seq retry_in tried
UPDATE frontier_touched
SET job_id = '', epoch = 0, attempts = attempts + :tried,
    due = CASE WHEN :tried OR :retry_in > 0 THEN shoal_now() + :retry_in ELSE due END
WHERE crawl = :crawl AND seq = :seq AND job_id = :job_id AND epoch = :epoch
RETURNING host;

-- name: suspect_waiting
-- Return the last URL in the queue that was in flight in two crashes. URLs at hosts on hold are ignored.
SELECT f.host, f.seq, f.attempts, f.crashes, f.kind, f.path, f.start, f.chain, shoal_now() AS now,
       EXISTS (SELECT 1 FROM redirect_target AS r WHERE r.crawl = :crawl) AS has_targets,
       (SELECT fh.pages FROM frontier_host AS fh WHERE fh.crawl = f.crawl AND fh.host = f.host) AS pages,
       (SELECT h.origin FROM host AS h WHERE h.number = f.host) AS origin,
       (SELECT c.key_seed FROM crawl AS c WHERE c.number = f.crawl) AS key_seed,
       coalesce((SELECT p.url FROM page AS p WHERE p.crawl = f.crawl AND p.key = f.parent ORDER BY p.chk LIMIT 1),
                (SELECT s.url FROM sitemap AS s WHERE s.crawl = f.crawl AND s.key = f.parent LIMIT 1)) AS parent_url
FROM frontier_touched AS f INDEXED BY frontier_suspect
WHERE f.crawl = :crawl AND f.crashes >= 2 AND f.job_id = '' AND f.due <= shoal_now()
      AND NOT EXISTS (SELECT 1 FROM host AS h WHERE h.number = f.host AND h.held_until > shoal_now())
ORDER BY f.seq DESC
LIMIT 1;

-- name: lost_urls
-- Return the taken URLs whose walker has lost its job.
SELECT host, job_id, epoch, seq, crashes
FROM frontier_touched
WHERE crawl = :crawl AND job_id > ''
      AND NOT EXISTS (SELECT 1 FROM job WHERE job.id = frontier_touched.job_id AND job.state = 'locked'
                                              AND job.lease_epoch = frontier_touched.epoch);

-- name: wake_hosts
-- Mark hosts as ready now.
-- rows: crawl host
INSERT INTO frontier_host (crawl, host, ready_at) VALUES (:crawl, :host, shoal_now())
ON CONFLICT (crawl, host) DO UPDATE SET ready_at = excluded.ready_at
WHERE frontier_host.ready_at IS NULL OR frontier_host.ready_at > excluded.ready_at;

-- name: add_skips
-- Raise one walker's count of a skip reason.
-- rows: crawl holder reason count
INSERT INTO crawl_skip (crawl, holder, reason, count) VALUES (:crawl, :holder, :reason, :count)
ON CONFLICT (crawl, holder, reason) DO UPDATE SET count = crawl_skip.count + excluded.count;

-- name: quarantine_urls
-- Move taken URLs to quarantine.
-- rows: crawl job_id epoch seq
UPDATE frontier_touched SET job_id = '', epoch = 0, due = 4611686018427387904
WHERE crawl = :crawl AND seq = :seq AND job_id = :job_id AND epoch = :epoch
RETURNING seq;

-- name: free_urls
-- Release URLs from quarantine.
-- rows: crawl seq
UPDATE frontier_touched SET due = 0 WHERE crawl = :crawl AND seq = :seq AND epoch = 0;

-- name: close_host
-- Close the new URLs of a host that has reached its page limit.
DELETE FROM frontier
WHERE crawl = :crawl AND host = :host
      AND seq <= (SELECT max(seq) FROM (SELECT seq FROM frontier WHERE crawl = :crawl AND host = :host ORDER BY seq LIMIT :limit))
RETURNING kind, path, NULL AS start, NULL AS chain;

-- name: close_retries_at_host
-- Close the retries of a host that has reached its page limit.
DELETE FROM frontier_touched
WHERE crawl = :crawl AND seq IN
      (SELECT seq FROM frontier_touched INDEXED BY frontier_again
       WHERE crawl = :crawl AND host = :host AND job_id = '' AND due < 4611686018427387904 LIMIT :limit)
RETURNING kind, path, start, chain;

-- name: count_host_pages
-- Add to the page counts of hosts.
-- rows: crawl host pages
UPDATE frontier_host SET pages = pages + :pages WHERE crawl = :crawl AND host = :host;

-- name: lock_hosts
-- Return the rows of these hosts. The write lock is held already.
SELECT host FROM frontier_host WHERE crawl = :crawl AND host IN (SELECT value FROM json_each(:hosts)) ORDER BY host;

-- name: lock_traps
-- Return the decisions about these patterns. The write lock is held already.
SELECT pattern, state FROM trap WHERE crawl = :crawl AND pattern IN (SELECT value FROM json_each(:patterns));

-- name: lock_one_host
-- Return the row of a host. The write lock is held already.
SELECT host, pages FROM frontier_host WHERE crawl = :crawl AND host = :host;

-- name: unclaim_hosts
-- Release the claims of a walker on hosts.
UPDATE frontier_host SET job_id = NULL, epoch = NULL WHERE crawl = :crawl AND host IN (SELECT value FROM json_each(:hosts));

-- name: quarantined_at_host
-- The URLs of a host that are in quarantine.
SELECT seq, kind, path FROM frontier_touched INDEXED BY frontier_again
WHERE crawl = :crawl AND host = :host AND job_id = '' AND due = 4611686018427387904;

-- name: landed
-- Return the final URLs of pages that redirected and are HTML or XML (which may be a sitemap).
SELECT p.final_url FROM json_each(:keys) AS k CROSS JOIN page AS p ON p.crawl = :crawl AND p.key = k.value
WHERE p.final_url <> p.url AND (p.content_hash IS NOT NULL OR p.content_type LIKE '%xml%');

-- name: targets_among
-- Return the given keys that are redirect targets, with their fates.
SELECT r.key, r.chk, r.fate FROM json_each(:keys) AS k CROSS JOIN redirect_target AS r ON r.crawl = :crawl AND r.key = k.value;

-- name: prepare_hosts
-- Insert a row for a host that is new to the crawl.
-- rows: crawl host
INSERT INTO frontier_host (crawl, host) VALUES (:crawl, :host) ON CONFLICT (crawl, host) DO NOTHING;

-- name: held_among
-- Return the given positions that a walker has taken.
SELECT seq FROM frontier_touched
WHERE crawl = :crawl AND job_id = :job_id AND job_id > '' AND epoch = :epoch AND seq IN (SELECT value FROM json_each(:places));

-- name: claim_fates
-- Record unknown URLs, and return which were unknown.
-- rows: key chk crawl fate
INSERT INTO fate (crawl, key, chk, fate) VALUES (:crawl, :key, :chk, :fate) ON CONFLICT (crawl, key, chk) DO NOTHING
RETURNING key, chk;

-- name: lock_targets
-- Return the fates of URLs, and for each URL, the URL that redirects to it. The write lock is held already.
SELECT f.key, f.chk, f.fate, r.via
FROM json_each(:keys) AS k CROSS JOIN json_each(:checks) AS c ON c.key = k.key
CROSS JOIN fate AS f ON f.crawl = :crawl AND f.key = k.value AND f.chk = c.value
LEFT JOIN redirect_target AS r ON r.crawl = f.crawl AND r.key = f.key AND r.chk = f.chk;

-- name: taken_pages_at
-- Return the pages of these hosts that walkers have taken, without pages that are being redirected.
SELECT host, path FROM frontier_touched INDEXED BY frontier_taken
WHERE crawl = :crawl AND job_id > '' AND kind = 0 AND start IS NULL AND host IN (SELECT value FROM json_each(:hosts));

-- name: redirected_among
-- Return the given URLs that are being redirected.
SELECT start FROM frontier_touched INDEXED BY frontier_redirected
WHERE crawl = :crawl AND start IS NOT NULL AND start IN (SELECT value FROM json_each(:urls));

-- name: redirect_states
-- Return the fates of URLs; for each URL, the URL that redirects to it, and its own redirects so far.
SELECT f.key, f.chk, f.fate, r.via,
       (SELECT t.chain FROM frontier_touched AS t INDEXED BY frontier_redirected
        WHERE t.crawl = :crawl AND t.start IS NOT NULL AND t.start = u.value) AS chain
FROM json_each(:keys) AS k CROSS JOIN json_each(:checks) AS c ON c.key = k.key CROSS JOIN json_each(:urls) AS u ON u.key = k.key
CROSS JOIN fate AS f ON f.crawl = :crawl AND f.key = k.value AND f.chk = c.value
LEFT JOIN redirect_target AS r ON r.crawl = f.crawl AND r.key = f.key AND r.chk = f.chk;

-- name: forget_targets
-- Forget that other URLs redirect to these URLs.
-- rows: key chk crawl
DELETE FROM redirect_target WHERE crawl = :crawl AND key = :key AND chk = :chk;

-- name: keep_targets
-- Store redirect targets.
-- rows: key chk crawl fate url via
INSERT INTO redirect_target (crawl, key, chk, fate, url, via) VALUES (:crawl, :key, :chk, :fate, :url, :via)
ON CONFLICT (crawl, key, chk) DO UPDATE SET fate = excluded.fate, via = excluded.via;

-- name: end_targets
-- Set the fates of redirect targets.
-- rows: key chk crawl fate
UPDATE redirect_target SET fate = :fate WHERE crawl = :crawl AND key = :key AND chk = :chk;

-- name: set_settled_fates
-- Set the fates of URLs that are not waiting; return the changed rows.
-- rows: key chk crawl fate
UPDATE fate SET fate = :fate WHERE crawl = :crawl AND key = :key AND chk = :chk AND fate <> 0
RETURNING key, chk, fate;

-- name: move_to_redirect_target
-- Move taken URLs to their redirect targets. They are fetched as soon as possible, or wait until a time.
-- rows: crawl job_id epoch seq host path start chain wait
UPDATE frontier_touched
SET job_id = '', epoch = 0, due = CASE WHEN :wait > 0 THEN shoal_now() + :wait ELSE 0 END, host = :host, path = :path,
    start = :start, chain = :chain
WHERE crawl = :crawl AND seq = :seq AND job_id = :job_id AND epoch = :epoch
RETURNING seq;

-- name: free_host_claims
-- Release the hosts that a walker has claimed.
UPDATE frontier_host SET job_id = NULL, epoch = NULL WHERE crawl = :crawl AND job_id = :job_id AND epoch = :epoch;
