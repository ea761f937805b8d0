-- name: lock_group
-- One group; the write lock is held already.
SELECT * FROM job_group WHERE id = :id;

-- name: specs_of_groups
-- How the pages of groups are fetched.
SELECT g.id, g.spec, g.labels FROM json_each(:ids) AS i CROSS JOIN job_group AS g ON g.id = i.value;
