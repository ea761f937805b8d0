-- Findings with codes, gates and verdicts; what sitemaps list. Findings of earlier analyses are dropped: they have no code.
ALTER TABLE analysis ADD COLUMN site TEXT NOT NULL DEFAULT '';  -- the first seed of the crawl
ALTER TABLE analysis ADD COLUMN gate TEXT;  -- its rules
ALTER TABLE analysis ADD COLUMN gate_name TEXT;
ALTER TABLE analysis ADD COLUMN baseline TEXT;  -- the id of the analysis to compare with
ALTER TABLE analysis ADD COLUMN commit_ref TEXT;  -- where the verdict is published
ALTER TABLE analysis ADD COLUMN metrics TEXT;
ALTER TABLE analysis ADD COLUMN summary TEXT;
ALTER TABLE analysis ADD COLUMN verdict TEXT;
CREATE INDEX analysis_of_site ON analysis (project, site, number) WHERE state = 'success';

-- The keys of the pages that a sitemap lists, eight bytes each; only if the crawl is analyzed.
ALTER TABLE sitemap ADD COLUMN entries BYTEA;

-- How each analyzer of an analysis ended.
CREATE TABLE analyzer_outcome (
    analysis    BIGINT NOT NULL REFERENCES analysis ON DELETE CASCADE,
    analyzer    TEXT NOT NULL,
    error       TEXT,
    findings    BIGINT NOT NULL,
    duration_ms DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (analysis, analyzer)
);
-- The number of findings by code. `count` is exact; `stored` of them are rows of `finding`.
CREATE TABLE finding_count (
    analysis BIGINT NOT NULL REFERENCES analysis ON DELETE CASCADE,
    code     TEXT NOT NULL,
    analyzer TEXT NOT NULL,
    severity TEXT NOT NULL CHECK (severity IN ('error', 'warning', 'notice')),
    title    TEXT NOT NULL,
    fix      TEXT NOT NULL,
    count    BIGINT NOT NULL CHECK (count > 0),
    stored   BIGINT NOT NULL CHECK (stored <= count),
    PRIMARY KEY (analysis, code)
);
-- `key` is the same for the same problem in every analysis of a site. `page`: a URL; NULL: it concerns the whole site.
DROP TABLE finding;
CREATE TABLE finding (
    analysis BIGINT NOT NULL,
    code     TEXT NOT NULL,
    number   BIGINT NOT NULL,
    key      BIGINT NOT NULL,
    page     TEXT,
    evidence TEXT NOT NULL,
    PRIMARY KEY (analysis, code, number),
    FOREIGN KEY (analysis, code) REFERENCES finding_count ON DELETE CASCADE
);
ALTER TABLE analysis ALTER COLUMN findings TYPE BIGINT;
UPDATE analysis SET findings = 0 WHERE findings IS NOT NULL;

-- Gates that crawls and analyses use by their name.
CREATE TABLE gate (
    name       TEXT PRIMARY KEY,
    rules      TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL
);

-- Commit statuses: what the forge should show for the commit of an analysis, and what it shows. `next_at`: when to
-- publish it; NULL: it is published, or was given up. `taken_until`: a publisher is sending it.
CREATE TABLE commit_status (
    analysis    BIGINT PRIMARY KEY REFERENCES analysis ON DELETE CASCADE,
    state       TEXT NOT NULL CHECK (state IN ('pending', 'success', 'failure', 'error')),
    description TEXT NOT NULL,
    shown       TEXT CHECK (shown IN ('pending', 'success', 'failure', 'error')),
    attempts    INTEGER NOT NULL DEFAULT 0,
    next_at     BIGINT,
    taken_until BIGINT NOT NULL DEFAULT 0,
    error       TEXT
);
CREATE INDEX commit_status_due ON commit_status (next_at) WHERE next_at IS NOT NULL;
