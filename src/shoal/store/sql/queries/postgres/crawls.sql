-- name: lock_crawl
-- Return one crawl, locked until the transaction ends. Not a key lock, so that counters that refer to the crawl do not
-- wait for it.
SELECT * FROM crawl WHERE id = :id FOR NO KEY UPDATE;

-- name: move_crawl
-- Change the state of a crawl, if the move is allowed from its current state.
UPDATE crawl
SET state = :state, state_reason = :reason,
    started_at = CASE WHEN :state = 'running' THEN coalesce(started_at, shoal_now()) ELSE started_at END,
    finished_at = CASE WHEN :state IN ('completed', 'failed', 'stopped') THEN shoal_now() END
WHERE id = :id AND state = ANY(:sources::text[]);

-- name: newest_crawls
-- Return crawls before a number and from :floor on, newest first, filtered by state, project, labels, host of a seed,
-- and text in their options.
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
-- The sums over all walkers of each of several crawls.
SELECT crawl, coalesce(sum(opened), 0) AS opened, coalesce(sum(settled), 0) AS settled, coalesce(sum(pages), 0) AS pages,
       coalesce(sum(errors), 0) AS errors, coalesce(sum(bytes), 0) AS bytes, coalesce(max(depth_reached), 0) AS depth_reached,
       coalesce(sum(walked), 0) AS walked, coalesce(sum(not_modified), 0) AS not_modified,
       coalesce(sum(bytes_saved), 0) AS bytes_saved,
       coalesce(sum(responses_2xx), 0) AS responses_2xx, coalesce(sum(responses_3xx), 0) AS responses_3xx,
       coalesce(sum(responses_4xx), 0) AS responses_4xx, coalesce(sum(responses_5xx), 0) AS responses_5xx,
       coalesce(sum(responses_none), 0) AS responses_none
FROM crawl_counter WHERE crawl = ANY(:crawls::int[]) GROUP BY crawl;

-- name: skips_of_crawls
-- Skipped URLs of several crawls by reason.
SELECT crawl, reason, sum(count) AS count FROM crawl_skip WHERE crawl = ANY(:crawls::int[]) GROUP BY crawl, reason ORDER BY crawl, reason;
