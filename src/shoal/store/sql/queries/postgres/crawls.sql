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
-- Return crawls before a number, newest first, filtered by state, project, labels, host of a seed, and text in their
-- options.
SELECT * FROM crawl
WHERE number < coalesce(CAST(:before AS INTEGER), 2147483647) AND (CAST(:state AS TEXT) IS NULL OR state = :state)
      AND (CAST(:project AS TEXT) IS NULL OR project = :project)
      AND (CAST(:labels AS TEXT) IS NULL OR (config::json -> 'labels')::jsonb @> CAST(:labels AS TEXT)::jsonb)
      AND (CAST(:host AS TEXT) IS NULL OR strpos(lower(config), '//' || CAST(:host AS TEXT) || '/') > 0 OR strpos(lower(config), '//' || CAST(:host AS TEXT) || '"') > 0 OR strpos(lower(config), '//' || CAST(:host AS TEXT) || ':') > 0)
      AND (CAST(:text AS TEXT) IS NULL OR strpos(lower(config), CAST(:text AS TEXT)) > 0 OR strpos(lower(id), CAST(:text AS TEXT)) > 0)
ORDER BY number DESC
LIMIT :limit;
