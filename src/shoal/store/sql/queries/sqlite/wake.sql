-- name: job_waits
-- Whether any worker of the fleet might have something to lease; lanes of single processes (`local/…`) do not count.
SELECT 1 FROM job WHERE state = 'pending' AND due = 1 AND lane < 'local/'
UNION ALL
SELECT 1 FROM job WHERE state = 'pending' AND due = 1 AND lane >= 'local0'
LIMIT 1;
