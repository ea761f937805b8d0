-- name: host_numbers
-- The numbers of these origins.
SELECT origin, number FROM host WHERE origin IN (SELECT value FROM json_each(:origins));
