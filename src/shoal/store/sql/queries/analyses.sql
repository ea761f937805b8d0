-- name: insert_analysis
-- Store a pending analysis of a crawl.
INSERT INTO analysis (id, crawl, crawl_id, project, state, created_at)
VALUES (:id, :crawl, :crawl_id, :project, 'pending', shoal_now());

-- name: analysis_by_id
-- One analysis.
SELECT * FROM analysis WHERE id = :id;

-- name: analyses_before
-- Return analyses, newest first, optionally of one state.
SELECT * FROM analysis
WHERE number < :before AND state IN (:pending, :running, :success, :failed)
ORDER BY number DESC LIMIT :limit;

-- name: analyses_of_crawl_before
-- Analyses of one crawl, newest first.
SELECT * FROM analysis
WHERE crawl_id = :crawl_id AND number < :before AND state IN (:pending, :running, :success, :failed)
ORDER BY number DESC LIMIT :limit;

-- name: begin_analysis
-- Set an analysis to running at its first attempt.
UPDATE analysis SET state = 'running', started_at = shoal_now() WHERE id = :id AND state = 'pending';

-- name: end_analysis
-- Store the end of an analysis, when its job has ended.
UPDATE analysis SET state = :state, state_reason = :reason, error = :error, finished_at = shoal_now()
WHERE id = :id AND finished_at IS NULL AND (state = 'running' OR :state = 'failed');

-- name: drop_findings
-- Delete the findings of an earlier attempt.
DELETE FROM finding WHERE analysis = :analysis;

-- name: count_findings
-- Store the number of findings with the analysis.
UPDATE analysis SET findings = :findings WHERE number = :number;

-- name: findings_of_analysis
-- The findings of an analysis.
SELECT analyzer, key, severity, message, facts FROM finding WHERE analysis = :analysis ORDER BY analyzer, key;
