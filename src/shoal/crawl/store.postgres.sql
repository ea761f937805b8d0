-- name: lock_crawl
-- Return one crawl, locked until the transaction ends. The lock leaves the key unlocked, so that inserts of counters,
-- which refer to the crawl, do not wait.
SELECT * FROM crawl WHERE id = :id FOR NO KEY UPDATE;

-- name: move_crawl
-- Change the state of a crawl, if the move is allowed from its current state.
UPDATE crawl
SET state = :state, state_reason = :reason,
    started_at = CASE WHEN :state = 'running' THEN coalesce(started_at, shoal_now()) ELSE started_at END,
    finished_at = CASE WHEN :state IN ('completed', 'failed', 'stopped') THEN shoal_now() END
WHERE id = :id AND state = ANY(:sources::text[]);

-- name: newest_crawls
-- Return crawls whose number is below :before and at least :floor, newest first. Filter by state, project, labels, seed
-- host, and text in the options.
SELECT * FROM crawl
WHERE number < coalesce(CAST(:before AS INTEGER), 2147483647) AND number >= CAST(:floor AS INTEGER)
      AND (CAST(:state AS TEXT) IS NULL OR state = :state)
      AND (CAST(:project AS TEXT) IS NULL OR project = :project)
      AND (CAST(:labels AS TEXT) IS NULL OR (config::json -> 'labels')::jsonb @> CAST(:labels AS TEXT)::jsonb)
      AND (CAST(:host AS TEXT) IS NULL
           OR strpos(lower(config), '//' || CAST(:host AS TEXT)) > 0
              AND (strpos(lower(config), '//' || CAST(:host AS TEXT) || '/') > 0
                   OR strpos(lower(config), '//' || CAST(:host AS TEXT) || '"') > 0
                   OR strpos(lower(config), '//' || CAST(:host AS TEXT) || ':') > 0))
      AND (CAST(:text AS TEXT) IS NULL OR strpos(lower(config), CAST(:text AS TEXT)) > 0
           OR strpos(lower(id), CAST(:text AS TEXT)) > 0)
ORDER BY number DESC
LIMIT :limit;

-- name: counts_of_crawls
-- For each of several crawls, return the sums over all its walkers.
SELECT crawl, coalesce(sum(opened), 0) AS opened, coalesce(sum(settled), 0) AS settled, coalesce(sum(pages), 0) AS pages,
       coalesce(sum(errors), 0) AS errors, coalesce(sum(bytes), 0) AS bytes, coalesce(max(depth_reached), 0) AS depth_reached,
       coalesce(sum(walked), 0) AS walked, coalesce(sum(not_modified), 0) AS not_modified,
       coalesce(sum(bytes_saved), 0) AS bytes_saved, coalesce(sum(stayed_empty), 0) AS stayed_empty,
       coalesce(sum(responses_2xx), 0) AS responses_2xx, coalesce(sum(responses_3xx), 0) AS responses_3xx,
       coalesce(sum(responses_4xx), 0) AS responses_4xx, coalesce(sum(responses_5xx), 0) AS responses_5xx,
       coalesce(sum(responses_none), 0) AS responses_none
FROM crawl_counter WHERE crawl = ANY(:crawls::int[]) GROUP BY crawl;

-- name: skips_of_crawls
-- Return the numbers of skipped URLs of several crawls by reason. URLs in quarantine are counted in the rows of their
-- patterns.
SELECT crawl, reason, sum(count) AS count
FROM (SELECT crawl, reason, count FROM crawl_skip WHERE crawl = ANY(:crawls::int[])
      UNION ALL SELECT crawl, 'trap', count FROM trap WHERE crawl = ANY(:crawls::int[]) AND state = 'quarantined') AS skips
GROUP BY crawl, reason ORDER BY crawl, reason;

-- name: url_outcomes
-- Return the fates of some URLs of a crawl, with the status and the error of the page if there is one.
-- rows: crawl key chk
SELECT f.key, f.chk, f.fate, p.number IS NOT NULL AS has_page, p.status, p.error_code, p.error_message
FROM unnest(:crawl::int[], :key::bigint[], :chk::int[]) AS g (crawl, key, chk)
CROSS JOIN LATERAL (SELECT t.key, t.chk, t.fate FROM fate AS t
                    WHERE t.crawl = g.crawl AND t.chk = g.chk AND t.key = g.key OFFSET 0) AS f
LEFT JOIN LATERAL (SELECT r.number, r.status, r.error_code, r.error_message FROM page AS r
                   WHERE r.crawl = g.crawl AND r.key = g.key AND r.chk = g.chk OFFSET 0) AS p ON true;

-- name: sitemaps_among
-- Return the given keys that belong to sitemaps of a crawl.
SELECT s.key FROM unnest(:keys::bigint[]) AS k (key)
CROSS JOIN LATERAL (SELECT t.key FROM sitemap AS t WHERE t.crawl = :crawl AND t.key = k.key ORDER BY t.chk OFFSET 0) AS s;
