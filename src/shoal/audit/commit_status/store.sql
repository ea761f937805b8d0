-- name: want_commit_status
-- Store what the commit of an analysis should show, in place of an earlier status.
INSERT INTO commit_status (analysis, state, description, next_at) VALUES (:analysis, :state, :description, shoal_now())
ON CONFLICT (analysis) DO UPDATE
SET state = :state, description = :description, attempts = 0, next_at = shoal_now(), error = NULL;

-- name: take_commit_status
-- Keep other publishers from a commit status for a while.
UPDATE commit_status SET taken_until = shoal_now() + :taken_for WHERE analysis = :analysis;

-- name: publish_commit_status
-- Record what the forge shows. Another status that is wanted by now stays due.
UPDATE commit_status SET shown = :state, taken_until = 0, error = NULL,
                         next_at = CASE WHEN state = :state AND description = :description THEN NULL ELSE next_at END
WHERE analysis = :analysis;

-- name: fail_commit_status
-- Record that a status could not be published. Another status that is wanted by now stays due.
UPDATE commit_status SET taken_until = 0, error = :error,
    attempts = CASE WHEN state = :state AND description = :description THEN attempts + 1 ELSE attempts END,
    next_at = CASE WHEN state = :state AND description = :description THEN shoal_now() + :again ELSE next_at END
WHERE analysis = :analysis;

-- name: attempt_of_analysis
-- How often the job of an analysis was tried; an analysis has one job.
SELECT state, attempts, max_attempts, lease_epoch FROM job WHERE run_id = :id;

-- name: commit_status_of
-- The commit status of an analysis.
SELECT s.*, (SELECT id FROM analysis WHERE id = :id) AS id,
       (SELECT commit_ref FROM analysis WHERE id = :id) AS commit_ref
FROM commit_status AS s WHERE s.analysis = (SELECT number FROM analysis WHERE id = :id);
