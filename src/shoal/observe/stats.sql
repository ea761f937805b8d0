-- name: hours
-- Return the hourly statistics since a time, for jobs of one kind or of all kinds.
SELECT hour, name, sum(amount) AS amount FROM job_hour
WHERE hour >= :since AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind)
GROUP BY hour, name ORDER BY hour DESC, name;

-- name: bots_by_hour
-- Return how many bots sent requests in each hour since a time.
SELECT hour, count(*) AS bots FROM bot_hour WHERE hour >= :since AND seen_at > 0 GROUP BY hour;

-- name: bots_seen
-- Return the bots that sent requests since a time, latest first, with the numbers of their actions.
SELECT token, bot_id, max(seen_at) AS seen_at, sum(pulled) AS pulled, sum(results) AS results, sum(failures) AS failures,
       sum(invalid_data) AS invalid_data, sum(late_results) AS late_results, sum(heartbeats) AS heartbeats,
       sum(late_heartbeats) AS late_heartbeats, sum(lost_leases) AS lost_leases
FROM bot_hour WHERE hour >= :since
GROUP BY token, bot_id HAVING max(seen_at) > 0 ORDER BY max(seen_at) DESC, token, bot_id LIMIT :limit;

-- name: forget_job_hours
-- Delete hourly statistics before an hour.
DELETE FROM job_hour WHERE hour < :before;

-- name: forget_bot_hours
-- Delete hourly bot statistics before an hour.
DELETE FROM bot_hour WHERE hour < :before;

-- name: rows_of_crawls
-- Return the numbers of pages and URLs of all crawls, from the crawls' counters.
SELECT CAST(coalesce(sum(pages), 0) AS BIGINT) AS page, CAST(coalesce(sum(opened), 0) AS BIGINT) AS fate FROM crawl_counter;
