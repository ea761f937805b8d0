-- name: now
-- The store's clock.
SELECT shoal_now() AS now;

-- name: insert_crawl
-- Store a crawl, unless its id is taken.
INSERT INTO crawl (id, state, project, config, named, priority, key_seed, policy_id, created_at)
VALUES (:id, :state, :project, :config, :named, :priority, :key_seed, :policy_id, shoal_now())
ON CONFLICT (id) DO NOTHING
RETURNING *;

-- name: crawl
-- One crawl.
SELECT * FROM crawl WHERE id = :id;

-- name: newest_crawl_id
-- The id of the newest crawl.
SELECT id FROM crawl ORDER BY number DESC LIMIT 1;

-- name: crawl_ids_like
-- The ids of two crawls that begin with a text.
SELECT id FROM crawl WHERE substr(id, 1, :length) = :text ORDER BY number DESC LIMIT 2;

-- name: first_failure
-- Return the URL and the error message of a crawl's first failed page with a number above :number and up to :upto.
SELECT url, error_message FROM page
WHERE crawl = :crawl AND number > :number AND number <= :upto AND error_message IS NOT NULL
ORDER BY number
LIMIT 1;

-- name: crawl_control
-- Return the values that walkers poll: the crawl's state, and the time when its options were changed.
SELECT state, changed_at FROM crawl WHERE id = :id;

-- name: change_crawl
-- Change the options of a crawl. Each change gets a different time, even if the clock does not move.
UPDATE crawl
SET config = :config, priority = :priority,
    changed_at = CASE WHEN shoal_now() > changed_at THEN shoal_now() ELSE changed_at + 1 END
WHERE id = :id;

-- name: keep_seeds
-- Replace the options of a crawl that has not started, and the seeds that a local user named.
UPDATE crawl SET config = :config, named = :named WHERE id = :id RETURNING *;

-- name: crawl_counts
-- The sums over all walkers of a crawl.
SELECT coalesce(sum(opened), 0) AS opened, coalesce(sum(settled), 0) AS settled, coalesce(sum(pages), 0) AS pages,
       coalesce(sum(errors), 0) AS errors, coalesce(sum(bytes), 0) AS bytes, coalesce(max(depth_reached), 0) AS depth_reached,
       coalesce(sum(walked), 0) AS walked, coalesce(sum(not_modified), 0) AS not_modified,
       coalesce(sum(bytes_saved), 0) AS bytes_saved, coalesce(sum(stayed_empty), 0) AS stayed_empty,
       coalesce(sum(responses_2xx), 0) AS responses_2xx, coalesce(sum(responses_3xx), 0) AS responses_3xx,
       coalesce(sum(responses_4xx), 0) AS responses_4xx, coalesce(sum(responses_5xx), 0) AS responses_5xx,
       coalesce(sum(responses_none), 0) AS responses_none
FROM crawl_counter WHERE crawl = :crawl;

-- name: last_crawl
-- Return the number of the newest crawl.
SELECT number FROM crawl ORDER BY number DESC LIMIT 1;

-- name: live_counts
-- Return the numbers of pages and errors of the crawls that walkers work on.
SELECT c.number,
       (SELECT coalesce(sum(k.pages), 0) FROM crawl_counter AS k WHERE k.crawl = c.number) AS pages,
       (SELECT coalesce(sum(k.errors), 0) FROM crawl_counter AS k WHERE k.crawl = c.number) AS errors
FROM crawl AS c WHERE c.finished_at IS NULL AND c.state IN ('running', 'pausing', 'stopping');

-- name: crawl_skips
-- Return the number of skipped URLs of a crawl by reason. URLs in quarantine are counted in the rows of their patterns.
SELECT reason, sum(count) AS count
FROM (SELECT reason, count FROM crawl_skip WHERE crawl = :crawl
      UNION ALL SELECT 'trap', count FROM trap WHERE crawl = :crawl AND state = 'quarantined') AS skips
GROUP BY reason ORDER BY reason;

-- name: add_counts
-- Raise the counters of one walker.
INSERT INTO crawl_counter (crawl, holder, opened, settled, pages, errors, bytes, not_modified, bytes_saved,
                           stayed_empty, depth_reached, walked,
                           responses_2xx, responses_3xx, responses_4xx, responses_5xx, responses_none)
VALUES (:crawl, :holder, :opened, :settled, :pages, :errors, :bytes, :not_modified, :bytes_saved, :stayed_empty,
        :depth, :walked, :responses_2xx, :responses_3xx, :responses_4xx, :responses_5xx, :responses_none)
ON CONFLICT (crawl, holder) DO UPDATE SET
    opened = crawl_counter.opened + excluded.opened,
    settled = crawl_counter.settled + excluded.settled,
    pages = crawl_counter.pages + excluded.pages,
    errors = crawl_counter.errors + excluded.errors,
    bytes = crawl_counter.bytes + excluded.bytes,
    not_modified = crawl_counter.not_modified + excluded.not_modified,
    bytes_saved = crawl_counter.bytes_saved + excluded.bytes_saved,
    stayed_empty = crawl_counter.stayed_empty + excluded.stayed_empty,
    walked = crawl_counter.walked + excluded.walked,
    responses_2xx = crawl_counter.responses_2xx + excluded.responses_2xx,
    responses_3xx = crawl_counter.responses_3xx + excluded.responses_3xx,
    responses_4xx = crawl_counter.responses_4xx + excluded.responses_4xx,
    responses_5xx = crawl_counter.responses_5xx + excluded.responses_5xx,
    responses_none = crawl_counter.responses_none + excluded.responses_none,
    depth_reached = CASE WHEN excluded.depth_reached > crawl_counter.depth_reached
                         THEN excluded.depth_reached ELSE crawl_counter.depth_reached END;

-- name: count_crawls
-- Return the number of crawls in each state.
SELECT state, count(*) AS count FROM crawl GROUP BY state ORDER BY state;

-- name: sitemap_of
-- The stored record of a sitemap.
SELECT url, fetched_at, status, listed, problem FROM sitemap WHERE crawl = :crawl AND key = :key AND chk = :chk;
