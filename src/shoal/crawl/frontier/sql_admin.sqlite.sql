-- name: fates_of
-- The fates of URLs, by key and check.
SELECT f.key, f.chk, f.fate
FROM json_each(:keys) AS k CROSS JOIN json_each(:checks) AS c ON c.key = k.key
CROSS JOIN fate AS f ON f.crawl = :crawl AND f.key = k.value AND f.chk = c.value;

-- name: keys_after
-- Return the URLs of which only the key is known, after a given key, in the order of the index.
SELECT key, chk, fate FROM fate
WHERE crawl = :crawl AND fate NOT IN (0, 3) AND (key, chk) > (:key, :chk)
ORDER BY key, chk
LIMIT :limit;

-- name: last_of_some_fates
-- Return the last key among the first :limit keys of a crawl.
SELECT key, chk FROM (SELECT key, chk FROM fate WHERE crawl = :crawl ORDER BY key, chk LIMIT :limit) AS chosen
ORDER BY key DESC, chk DESC
LIMIT 1;

-- name: drop_fates_up_to
-- Delete the fates of URLs, up to a key.
DELETE FROM fate WHERE crawl = :crawl AND (key, chk) <= (:key, :chk);

-- name: drop_touched
-- Delete URLs that were taken at least once from the frontier.
-- rows: crawl seq
DELETE FROM frontier_touched WHERE crawl = :crawl AND seq = :seq;

-- name: drop_fates
-- Delete the fates of URLs.
-- rows: key chk crawl
DELETE FROM fate WHERE crawl = :crawl AND key = :key AND chk = :chk;

-- name: keep_host_pages
-- Store the page counts of hosts.
INSERT INTO frontier_host (crawl, host, pages) VALUES (:crawl, :host, :pages)
ON CONFLICT (crawl, host) DO UPDATE SET pages = frontier_host.pages + excluded.pages;

-- name: wake_hosts_at
-- Mark hosts as ready at a time.
INSERT INTO frontier_host (crawl, host, ready_at) VALUES (:crawl, :host, :ready_at)
ON CONFLICT (crawl, host) DO UPDATE SET ready_at = excluded.ready_at
WHERE frontier_host.ready_at IS NULL OR frontier_host.ready_at > excluded.ready_at;

-- name: add_redirected
-- Add URLs that are being redirected. `seq` contains the depth.
-- rows: crawl host seq due attempts crashes parent kind path start chain
INSERT INTO frontier_touched (crawl, host, seq, due, attempts, crashes, parent, kind, path, start, chain)
VALUES (:crawl, :host, :seq, :due, :attempts, :crashes, :parent, :kind, :path, :start, :chain);

-- name: drop_pages_up_to
-- Delete pages of a crawl, up to a number.
DELETE FROM page WHERE crawl = :crawl AND number <= :number;

-- name: kept_url
-- Return one stored URL. This scans the URLs of its host, because URLs are not indexed.
SELECT h.origin, f.path, f.seq, f.due, f.parent, f.attempts, f.crashes, f.kind, f.job_id, f.epoch, f.start, f.chain,
       coalesce((SELECT p.url FROM page AS p WHERE p.crawl = f.crawl AND p.key = f.parent ORDER BY p.chk LIMIT 1),
                (SELECT s.url FROM sitemap AS s WHERE s.crawl = f.crawl AND s.key = f.parent LIMIT 1)) AS parent_url,
       (SELECT fh.ready_at FROM frontier_host AS fh WHERE fh.crawl = f.crawl AND fh.host = f.host) AS ready_at,
       CASE WHEN h.held_until > shoal_now() THEN h.held_until END AS held_until, h.held_status
FROM (SELECT * FROM frontier_open WHERE crawl = :crawl AND host = :host AND path = :path AND kind = :kind AND start IS NULL
      UNION ALL
      SELECT crawl, host, due, seq, job_id, epoch, attempts, crashes, parent, kind, path, start, chain
      FROM frontier_touched WHERE crawl = :crawl AND start IS NOT NULL AND start = :url AND kind = :kind) AS f
JOIN host AS h ON h.number = f.host;
