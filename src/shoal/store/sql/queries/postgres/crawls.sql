-- name: lock_crawl
-- One crawl, locked until the transaction ends. Not a key lock: counters that refer to the crawl do not wait for it.
SELECT * FROM crawl WHERE id = :id FOR NO KEY UPDATE;

-- name: move_crawl
-- Change the state of a crawl, if it is one of those that the move may come from.
UPDATE crawl
SET state = :state, state_reason = :reason,
    started_at = CASE WHEN :state = 'running' THEN coalesce(started_at, shoal_now()) ELSE started_at END,
    finished_at = CASE WHEN :state IN ('completed', 'failed', 'stopped') THEN shoal_now() END
WHERE id = :id AND state = ANY(:sources::text[]);
