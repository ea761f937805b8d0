-- name: count_jobs
-- Return how many jobs there are by kind and state.
SELECT kind, state, count(*) AS count FROM job GROUP BY kind, state ORDER BY kind, state;
