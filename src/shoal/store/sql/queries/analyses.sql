-- name: insert_analysis
-- Store a pending analysis of a crawl.
INSERT INTO analysis (id, crawl, crawl_id, project, state, created_at)
VALUES (:id, :crawl, :crawl_id, :project, 'pending', shoal_now());

-- name: analysis_by_id
-- One analysis.
SELECT * FROM analysis WHERE id = :id;

-- name: analyses_before
-- Analyses, newest first; of one state or one crawl, if it is named.
SELECT * FROM analysis
WHERE number < :before AND state IN (:pending, :running, :success, :failed)
ORDER BY number DESC LIMIT :limit;

-- name: analyses_of_crawl_before
-- Analyses of one crawl, newest first.
SELECT * FROM analysis
WHERE crawl_id = :crawl_id AND number < :before AND state IN (:pending, :running, :success, :failed)
ORDER BY number DESC LIMIT :limit;

-- name: begin_analysis
-- The first attempt begins.
UPDATE analysis SET state = 'running', started_at = shoal_now() WHERE id = :id AND state = 'pending';

-- name: end_analysis
-- Its job has ended.
UPDATE analysis SET state = :state, state_reason = :reason, error = :error, finished_at = shoal_now()
WHERE id = :id AND finished_at IS NULL AND (state = 'running' OR :state = 'failed');

-- name: drop_findings
-- Drop what an earlier attempt may have left.
DELETE FROM finding WHERE analysis = :analysis;

-- name: count_findings
-- Say with the analysis how many findings it has.
UPDATE analysis SET findings = :findings WHERE number = :number;

-- name: findings_of_analysis
-- What analyzers found.
SELECT analyzer, key, severity, message, facts FROM finding WHERE analysis = :analysis ORDER BY analyzer, key;
