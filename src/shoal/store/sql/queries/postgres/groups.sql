-- name: lock_group
-- One group, locked against any other change.
SELECT * FROM job_group WHERE id = :id FOR UPDATE;

-- name: specs_of_groups
-- How the pages of groups are fetched.
SELECT id, spec, labels FROM job_group WHERE id = ANY(:ids::text[]);
