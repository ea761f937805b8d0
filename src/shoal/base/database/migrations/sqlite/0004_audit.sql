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
ALTER TABLE sitemap ADD COLUMN entries BLOB;

-- How each analyzer of an analysis ended.
CREATE TABLE analyzer_outcome (
    analysis    INTEGER NOT NULL REFERENCES analysis ON DELETE CASCADE,
    analyzer    TEXT NOT NULL,
    error       TEXT,
    findings    INTEGER NOT NULL,
    duration_ms REAL NOT NULL,
    PRIMARY KEY (analysis, analyzer)
);
-- The number of findings by code. `count` is exact; `stored` of them are rows of `finding`.
CREATE TABLE finding_count (
    analysis INTEGER NOT NULL REFERENCES analysis ON DELETE CASCADE,
    code     TEXT NOT NULL,
    analyzer TEXT NOT NULL,
    severity TEXT NOT NULL CHECK (severity IN ('error', 'warning', 'notice')),
    title    TEXT NOT NULL,
    fix      TEXT NOT NULL,
    count    INTEGER NOT NULL CHECK (count > 0),
    stored   INTEGER NOT NULL CHECK (stored <= count),
    PRIMARY KEY (analysis, code)
);
-- `key` is the same for the same problem in every analysis of a site. `page`: a URL; NULL: it concerns the whole site.
DROP TABLE finding;
CREATE TABLE finding (
    analysis INTEGER NOT NULL,
    code     TEXT NOT NULL,
    number   INTEGER NOT NULL,
    key      INTEGER NOT NULL,
    page     TEXT,
    evidence TEXT NOT NULL,
    PRIMARY KEY (analysis, code, number),
    FOREIGN KEY (analysis, code) REFERENCES finding_count ON DELETE CASCADE
) WITHOUT ROWID;
UPDATE analysis SET findings = 0 WHERE findings IS NOT NULL;

-- Gates that crawls and analyses use by their name.
CREATE TABLE gate (
    name       TEXT PRIMARY KEY,
    rules      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL
);

-- Commit statuses: what the forge should show for the commit of an analysis, and what it shows. `next_at`: when to
-- publish it; NULL: it is published, or was given up. `taken_until`: a publisher is sending it.
CREATE TABLE commit_status (
    analysis    INTEGER PRIMARY KEY REFERENCES analysis ON DELETE CASCADE,
    state       TEXT NOT NULL CHECK (state IN ('pending', 'success', 'failure', 'error')),
    description TEXT NOT NULL,
    shown       TEXT CHECK (shown IN ('pending', 'success', 'failure', 'error')),
    attempts    INTEGER NOT NULL DEFAULT 0,
    next_at     INTEGER,
    taken_until INTEGER NOT NULL DEFAULT 0,
    error       TEXT
);
CREATE INDEX commit_status_due ON commit_status (next_at) WHERE next_at IS NOT NULL;
