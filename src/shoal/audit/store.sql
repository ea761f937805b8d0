-- name: insert_analysis
-- Store a pending analysis of a crawl.
INSERT INTO analysis (id, crawl, crawl_id, project, site, gate, gate_name, baseline, commit_ref, state, created_at)
VALUES (:id, :crawl, :crawl_id, :project, :site, :gate, :gate_name, :baseline, :commit_ref, 'pending', shoal_now());

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

-- name: newest_success_of_site
-- The newest successful analysis of a site.
SELECT * FROM analysis WHERE project = :project AND site = :site AND state = 'success' ORDER BY number DESC LIMIT 1;

-- name: begin_analysis
-- Set an analysis to running at its first attempt.
UPDATE analysis SET state = 'running', started_at = shoal_now() WHERE id = :id AND state = 'pending';

-- name: end_analysis
-- Store the end of an analysis, when its job has ended.
UPDATE analysis SET state = :state, state_reason = :reason, error = :error, finished_at = shoal_now()
WHERE id = :id AND finished_at IS NULL AND (state = 'running' OR :state = 'failed');

-- name: summarize_analysis
-- Store the summary of the crawl while analyzers run.
UPDATE analysis SET summary = :summary WHERE number = :number;

-- name: conclude_analysis
-- Store the metrics, the summary, the verdict, and the number of all findings.
UPDATE analysis SET metrics = :metrics, summary = :summary, verdict = :verdict,
                    findings = (SELECT COALESCE(SUM(count), 0) FROM finding_count WHERE analysis = :number)
WHERE number = :number;

-- name: drop_outcome
-- Delete the record of how an analyzer ended in an earlier attempt.
DELETE FROM analyzer_outcome WHERE analysis = :analysis AND analyzer = :analyzer;

-- name: drop_findings
-- Delete the findings of an analyzer from an earlier attempt.
DELETE FROM finding_count WHERE analysis = :analysis AND analyzer = :analyzer;

-- name: insert_outcome
-- Store how an analyzer ended.
INSERT INTO analyzer_outcome (analysis, analyzer, error, findings, duration_ms, artifacts, skipped, optional)
VALUES (:analysis, :analyzer, :error, :findings, :duration_ms, :artifacts, :skipped, :optional);

-- name: insert_finding_count
-- Store the number of findings of a code.
INSERT INTO finding_count (analysis, code, analyzer, severity, title, fix, count, stored)
VALUES (:analysis, :code, :analyzer, :severity, :title, :fix, :count, :stored);

-- name: outcomes_of_analysis
-- How each analyzer ended.
SELECT analyzer, error, findings, duration_ms, artifacts, skipped, optional FROM analyzer_outcome
WHERE analysis = :analysis ORDER BY analyzer;

-- name: counts_of_analysis
-- The number of findings of each code.
SELECT analyzer, code, severity, title, fix, count, stored FROM finding_count WHERE analysis = :analysis ORDER BY code;

-- name: findings_of_code
-- Findings of one code, in their order.
SELECT code, number, key, page, evidence FROM finding
WHERE analysis = :analysis AND code = :code AND number > :number ORDER BY number LIMIT :limit;

-- name: findings_of_page
-- The findings of one code about one page, in their order.
SELECT code, number, key, page, evidence FROM finding
WHERE analysis = :analysis AND code = :code AND page = :page ORDER BY number LIMIT :limit;

-- name: put_gate
-- Store a gate under a name, replacing any gate of that name.
INSERT INTO gate (name, rules, created_at, changed_at) VALUES (:name, :rules, shoal_now(), shoal_now())
ON CONFLICT (name) DO UPDATE SET rules = :rules, changed_at = shoal_now();

-- name: gate_by_name
-- One gate.
SELECT * FROM gate WHERE name = :name;

-- name: all_gates
-- All gates.
SELECT * FROM gate ORDER BY name;

-- name: count_gates
-- How many gates there are.
SELECT count(*) FROM gate;

-- name: delete_gate
-- Delete a gate.
DELETE FROM gate WHERE name = :name;

-- name: want_commit_status
-- Store the status that the commit of an analysis should show, replacing any earlier status.
INSERT INTO commit_status (analysis, state, description, next_at) VALUES (:analysis, :state, :description, shoal_now())
ON CONFLICT (analysis) DO UPDATE
SET state = :state, description = :description, attempts = 0, next_at = shoal_now(), error = NULL;

-- name: take_commit_status
-- Keep other publishers from a commit status for a while.
UPDATE commit_status SET taken_until = shoal_now() + :taken_for WHERE analysis = :analysis;

-- name: publish_commit_status
-- Record what the forge shows. If a different status is wanted by now, that status stays due.
UPDATE commit_status SET shown = :state, taken_until = 0, error = NULL,
                         next_at = CASE WHEN state = :state AND description = :description THEN NULL ELSE next_at END
WHERE analysis = :analysis;

-- name: fail_commit_status
-- Record that a status could not be published. If a different status is wanted by now, that status stays due.
UPDATE commit_status SET taken_until = 0, error = :error,
    attempts = CASE WHEN state = :state AND description = :description THEN attempts + 1 ELSE attempts END,
    next_at = CASE WHEN state = :state AND description = :description THEN shoal_now() + :again ELSE next_at END
WHERE analysis = :analysis;

-- name: commit_status_of
-- The commit status of an analysis.
SELECT s.*, (SELECT id FROM analysis WHERE id = :id) AS id,
       (SELECT commit_ref FROM analysis WHERE id = :id) AS commit_ref
FROM commit_status AS s WHERE s.analysis = (SELECT number FROM analysis WHERE id = :id);

-- name: attempt_of_analysis
-- The number of attempts of an analysis job; each analysis has one job.
SELECT state, attempts, max_attempts, lease_epoch FROM job WHERE run_id = :id;
