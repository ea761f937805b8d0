-- name: count_crawls
-- How many crawls there are by state.
SELECT state, count(*) AS count FROM crawl GROUP BY state ORDER BY state;

-- name: count_jobs
-- How many jobs there are by kind and state.
SELECT kind, state, count(*) AS count FROM job GROUP BY kind, state ORDER BY kind, state;
