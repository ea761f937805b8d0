-- Runs, jobs, frontier, hosts, pages, outbox. Times are UTC microseconds. Leases use only the clock `shoal_now()`,
-- which the driver defines.

-- The anchor of the store's clock: it showed `at` when `base` plus the uptime of the machine since the boot `boot` was
-- `since` (decision 0033).
CREATE TABLE store_clock (
    boot      TEXT NOT NULL,
    base      INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    since     INTEGER NOT NULL,
    jumped_at INTEGER NOT NULL,
    untold    INTEGER NOT NULL
);
INSERT INTO store_clock VALUES ('', 0, 0, 0, 0, 0);

CREATE TABLE crawl (
    number       INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    state        TEXT NOT NULL CHECK (state IN ('pending', 'queued', 'running', 'pausing', 'paused', 'stopping',
                                                'stopped', 'completed', 'failed')),
    state_reason TEXT,
    project      TEXT NOT NULL,
    config       TEXT NOT NULL,
    named        TEXT NOT NULL,
    priority     INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 100),
    key_seed     INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    started_at   INTEGER,
    finished_at  INTEGER,
    changed_at   INTEGER NOT NULL DEFAULT 0,  -- when its options last changed: a walker with older options reads them again
    CHECK ((state IN ('completed', 'failed', 'stopped')) = (finished_at IS NOT NULL)),
    CHECK (started_at IS NOT NULL OR state NOT IN ('running', 'pausing', 'completed'))
);
CREATE INDEX crawl_newest ON crawl (created_at DESC, number DESC);
CREATE INDEX crawl_live ON crawl (state) WHERE finished_at IS NULL;

-- One row per walker, and one ('') for changes from outside, so that nobody waits for a row of somebody else.
CREATE TABLE crawl_counter (
    crawl         INTEGER NOT NULL REFERENCES crawl,
    holder        TEXT NOT NULL,
    opened        INTEGER NOT NULL DEFAULT 0,
    settled       INTEGER NOT NULL DEFAULT 0,
    pages         INTEGER NOT NULL DEFAULT 0,
    errors        INTEGER NOT NULL DEFAULT 0,
    responses_2xx  INTEGER NOT NULL DEFAULT 0,
    responses_3xx  INTEGER NOT NULL DEFAULT 0,
    responses_4xx  INTEGER NOT NULL DEFAULT 0,
    responses_5xx  INTEGER NOT NULL DEFAULT 0,
    responses_none INTEGER NOT NULL DEFAULT 0,
    bytes         INTEGER NOT NULL DEFAULT 0,
    not_modified  INTEGER NOT NULL DEFAULT 0,
    bytes_saved   INTEGER NOT NULL DEFAULT 0,
    depth_reached INTEGER NOT NULL DEFAULT 0,
    walked        INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (crawl, holder)
) WITHOUT ROWID;
CREATE TABLE crawl_skip (
    crawl  INTEGER NOT NULL REFERENCES crawl,
    holder TEXT NOT NULL,
    reason TEXT NOT NULL,
    count  INTEGER NOT NULL,
    PRIMARY KEY (crawl, holder, reason)
) WITHOUT ROWID;

-- The journal of a crawl. `lines`: the number of its last entry; `filed`: the number of the last entry that is in a
-- file; `depth`: the journal says that everything up to this depth is settled; `was`: the previous `depth`.
CREATE TABLE crawl_journal (
    crawl INTEGER PRIMARY KEY REFERENCES crawl,
    lines INTEGER NOT NULL DEFAULT 0,
    filed INTEGER NOT NULL DEFAULT 0,
    depth INTEGER NOT NULL DEFAULT -1,
    was   INTEGER NOT NULL DEFAULT -1
);
CREATE INDEX crawl_journal_unfiled ON crawl_journal (crawl) WHERE filed < lines;
CREATE TABLE crawl_line (
    crawl   INTEGER NOT NULL REFERENCES crawl,
    number  INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    level   TEXT NOT NULL CHECK (level IN ('info', 'warning', 'error')),
    event   TEXT NOT NULL,
    message TEXT NOT NULL,
    facts   TEXT NOT NULL,
    PRIMARY KEY (crawl, number)
) WITHOUT ROWID;

-- `rank` orders the jobs of a lane, lowest first: the time of entry (`line_at`) minus a fixed span per point of
-- priority, so that waiting makes up for a low priority. `due`: 1 waits in its lane; 0 waits for `not_before`; 2 is
-- parked, because the quota key in `parked` is full. A lease reads only jobs with `due` 1.
CREATE TABLE job (
    id              TEXT PRIMARY KEY,
    kind            TEXT NOT NULL,
    capability      TEXT NOT NULL DEFAULT 'http',
    host            TEXT,  -- the origin that it requests; NULL: it is not leased by host
    state           TEXT NOT NULL CHECK (state IN ('pending', 'locked', 'done', 'failed', 'expired', 'cancelled')),
    state_reason    TEXT,
    run_id          TEXT,
    payload         TEXT NOT NULL,
    lane            TEXT NOT NULL,
    offered_session TEXT,
    offered_until   INTEGER,
    dedupe_key      TEXT,
    scopes          TEXT,  -- a JSON list; NULL: none
    parked          TEXT,
    priority        INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 100),
    rank            INTEGER NOT NULL DEFAULT 0,
    not_before      INTEGER NOT NULL,
    due             INTEGER NOT NULL DEFAULT 1 CHECK (due IN (0, 1, 2)),
    attempts        INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    max_attempts    INTEGER NOT NULL CHECK (max_attempts >= 1),
    lock_ttl        INTEGER,  -- the lease term for bots, set by its policy; all leases of nodes have the same term
    crash_count     INTEGER NOT NULL DEFAULT 0 CHECK (crash_count >= 0),
    lease_epoch     INTEGER NOT NULL DEFAULT 0 CHECK (lease_epoch >= 0),
    lease_holder    TEXT,
    lease_until     INTEGER,
    granted_at      INTEGER,  -- of the last grant
    kill_at         INTEGER,  -- when its worker must kill it
    error           TEXT,
    created_at      INTEGER NOT NULL,
    line_at         INTEGER NOT NULL DEFAULT 0,  -- when it was created, or returned to the end of its lane
    finished_at     INTEGER,
    CHECK ((state = 'locked') = (lease_holder IS NOT NULL)),
    CHECK ((state = 'locked') = (lease_until IS NOT NULL)),
    CHECK ((state IN ('pending', 'locked')) = (finished_at IS NULL)),
    CHECK ((parked IS NOT NULL) = (due = 2)),
    CHECK (attempts <= max_attempts)
);
CREATE INDEX job_waiting ON job (lane, kind, capability, rank, id) WHERE state = 'pending' AND due = 1;
CREATE INDEX job_of_host ON job (lane, kind, capability, host, rank, id)
    WHERE state = 'pending' AND due = 1 AND host IS NOT NULL;
CREATE INDEX job_later ON job (not_before) WHERE state = 'pending' AND due = 0;
CREATE INDEX job_parked ON job (parked, rank, id) WHERE state = 'pending' AND due = 2;
CREATE INDEX job_leased ON job (lease_until) WHERE state = 'locked';
CREATE INDEX job_offered ON job (offered_until) WHERE offered_until IS NOT NULL;
CREATE INDEX job_run ON job (run_id, id) WHERE run_id IS NOT NULL;
CREATE INDEX job_finished ON job (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX job_dead ON job (id) WHERE state IN ('failed', 'expired');
CREATE UNIQUE INDEX job_dedupe ON job (dedupe_key) WHERE dedupe_key IS NOT NULL AND finished_at IS NULL;

-- Hosts with waiting jobs, so that a lease reads only hosts that may be requested now. `rank`: at most the lowest rank
-- of these jobs. `due` 1: examine the host; 0: do not request it before `ready_at`. A commit that makes a job wait
-- ensures that there is a row, without waiting for another commit. A lease that examines a host takes all its rows and
-- leaves one, or none.
CREATE TABLE job_host (
    number     INTEGER PRIMARY KEY,
    lane       TEXT NOT NULL,
    kind       TEXT NOT NULL,
    capability TEXT NOT NULL,
    host       TEXT NOT NULL,
    rank       INTEGER NOT NULL,
    due        INTEGER NOT NULL DEFAULT 1 CHECK (due IN (0, 1)),
    ready_at   INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX job_host_ready ON job_host (lane, kind, capability, rank, number) WHERE due = 1;
CREATE INDEX job_host_later ON job_host (ready_at) WHERE due = 0;
CREATE INDEX job_host_rows ON job_host (lane, kind, capability, host);

-- The history of jobs, one row per grant: the holder, the time, the process, and how the grant ended. Deleted with its
-- job.
CREATE TABLE job_grant (
    job_id     TEXT NOT NULL,
    epoch      INTEGER NOT NULL,
    holder     TEXT NOT NULL,
    granted_at INTEGER NOT NULL,
    settled    INTEGER NOT NULL DEFAULT 0,
    ended_at   INTEGER,
    ended      TEXT CHECK (ended IN ('done', 'retried', 'failed', 'expired', 'crashed', 'released', 'cancelled')),
    error      TEXT,
    node       TEXT,
    pid        INTEGER,
    config     TEXT,
    PRIMARY KEY (job_id, epoch),
    CHECK ((ended IS NULL) = (ended_at IS NULL))
) WITHOUT ROWID;

-- Quotas: how many jobs of a scope (a quota key) may be locked at once, and one row in `job_seat` for each locked job
-- that counts towards a limited scope.
CREATE TABLE quota (
    scope TEXT PRIMARY KEY,
    most  INTEGER NOT NULL CHECK (most >= 0)
);
CREATE TABLE job_seat (
    scope  TEXT NOT NULL,
    job_id TEXT NOT NULL,
    PRIMARY KEY (job_id, scope)
) WITHOUT ROWID;
CREATE INDEX job_seat_scope ON job_seat (scope);

-- Leader election: the controller that runs a chore, until its lease expires. The term increases with each new leader.
CREATE TABLE leader (
    chore  TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    term   INTEGER NOT NULL,
    until  INTEGER NOT NULL
);

-- Page jobs that were created together. `spec`: how their pages are fetched. `jobs`: the number of jobs by final state,
-- once all have ended.
CREATE TABLE job_group (
    number       INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    state        TEXT NOT NULL CHECK (state IN ('open', 'completed', 'cancelled')),
    state_reason TEXT,
    project      TEXT NOT NULL,
    labels       TEXT NOT NULL,
    priority     INTEGER NOT NULL,
    total        INTEGER NOT NULL,
    spec         TEXT NOT NULL,
    jobs         TEXT,
    created_at   INTEGER NOT NULL,
    finished_at  INTEGER,
    CHECK ((state = 'open') = (finished_at IS NULL)),
    CHECK ((state = 'open') = (jobs IS NULL))
);
CREATE INDEX job_group_over ON job_group (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX job_live_of_run ON job (run_id) WHERE run_id IS NOT NULL AND finished_at IS NULL;

-- The results of page jobs, one row per grant with a result. `state`: the job state that it led to; `digest`: a hash of
-- the result, so that a repeated delivery gets the same receipt. Deleted with its job, except for results of policies.
CREATE TABLE result (
    number        INTEGER PRIMARY KEY,
    job_id        TEXT NOT NULL,
    epoch         INTEGER NOT NULL,
    group_id      TEXT,
    policy        TEXT,
    state         TEXT NOT NULL CHECK (state IN ('done', 'pending', 'failed', 'expired')),
    status        TEXT NOT NULL CHECK (status IN ('success', 'fail')),
    http_status   INTEGER,
    fetched_at    INTEGER NOT NULL,
    duration      REAL,
    digest        TEXT NOT NULL,
    url           TEXT NOT NULL,
    final_url     TEXT,
    html_hash     TEXT,
    error_code    TEXT,
    error_message TEXT,
    data          TEXT,
    UNIQUE (job_id, epoch),
    CHECK ((state = 'done') = (status = 'success')),
    CHECK ((status = 'fail') = (error_code IS NOT NULL))
);
CREATE INDEX result_of_group ON result (group_id, number) WHERE group_id IS NOT NULL AND state <> 'pending';
CREATE INDEX result_of_policy ON result (policy, number) WHERE policy IS NOT NULL AND state <> 'pending';
CREATE INDEX result_old ON result (fetched_at, number) WHERE policy IS NOT NULL;

-- One row per host, shared by all processes. `next_at`: its next free slot. `delay`: the delay that its robots.txt asks
-- for. `held_until`, `held_status`: a hold, and the status of the response that caused it. `backoff`: the length of the
-- last hold without a Retry-After, 0 after a good response. `granted`: the slots of the last reservation, because
-- RETURNING cannot see the old row.
CREATE TABLE host (
    number       INTEGER PRIMARY KEY,
    origin       TEXT NOT NULL UNIQUE,
    next_at      INTEGER NOT NULL DEFAULT 0,
    granted      INTEGER NOT NULL DEFAULT 0,
    delay        INTEGER NOT NULL DEFAULT 0,
    held_until   INTEGER NOT NULL DEFAULT 0,
    held_status  INTEGER,
    backoff      INTEGER NOT NULL DEFAULT 0,
    refusals     TEXT NOT NULL DEFAULT '',  -- the last URLs that answered 503, by their hashes, and when
    latency      INTEGER NOT NULL DEFAULT 0,
    latency_at   INTEGER NOT NULL DEFAULT 0,
    robots_state TEXT CHECK (robots_state IN ('found', 'absent', 'unreachable')),
    robots       TEXT,
    robots_hash  TEXT,
    robots_at    INTEGER,
    CHECK ((robots_state IS NULL) = (robots_at IS NULL))
);
CREATE INDEX host_held ON host (held_until) WHERE held_until > 0;

-- Every distinct URL of a crawl, by 96 bits of its hash, with its fate.
CREATE TABLE fate (
    key   INTEGER NOT NULL,
    crawl INTEGER NOT NULL,
    chk   INTEGER NOT NULL,
    fate  INTEGER NOT NULL,
    PRIMARY KEY (crawl, key, chk)
) WITHOUT ROWID;

-- The URLs that wait for their first fetch. `seq` is the position in the queue of the host: the depth in the upper
-- bits, the order of discovery in the lower 40. The key is not stored, because it can be computed from the URL.
CREATE TABLE frontier_seq (value INTEGER NOT NULL);
INSERT INTO frontier_seq VALUES (0);
CREATE TABLE frontier (
    crawl  INTEGER NOT NULL,
    host   INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    parent INTEGER,
    kind   INTEGER NOT NULL,  -- 0 page, 1 sitemap
    path   TEXT NOT NULL,
    PRIMARY KEY (crawl, host, seq)
) WITHOUT ROWID;
-- The open URLs that were taken at least once: a walker holds one now (job_id, epoch), or it waits again (''), at once
-- or until `due`. URLs in quarantine wait until they are released. A URL that redirected (`start`) has the host and
-- path of its redirect target, and the redirects that led there (`chain`).
CREATE TABLE frontier_touched (
    crawl    INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    job_id   TEXT NOT NULL DEFAULT '',
    epoch    INTEGER NOT NULL DEFAULT 0,
    host     INTEGER NOT NULL,
    due      INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    crashes  INTEGER NOT NULL DEFAULT 0,
    parent   INTEGER,
    kind     INTEGER NOT NULL,
    path     TEXT NOT NULL,
    start    TEXT,
    chain    BLOB,
    PRIMARY KEY (crawl, seq),
    CHECK ((job_id = '') = (epoch = 0)),
    CHECK ((start IS NULL) = (chain IS NULL))
) WITHOUT ROWID;
CREATE INDEX frontier_taken ON frontier_touched (crawl, job_id, epoch, seq) WHERE job_id > '';
CREATE INDEX frontier_again ON frontier_touched (crawl, host, due, seq) WHERE job_id = '';
CREATE INDEX frontier_suspect ON frontier_touched (crawl, seq) WHERE crashes >= 2;
CREATE INDEX frontier_redirected ON frontier_touched (crawl, start) WHERE start IS NOT NULL;
CREATE VIEW frontier_open AS
SELECT crawl, host, due, seq, job_id, epoch, attempts, crashes, parent, kind, path, start, chain FROM frontier_touched
UNION ALL
SELECT crawl, host, 0, seq, '', 0, 0, 0, parent, kind, path, NULL, NULL FROM frontier;

-- The hosts of a crawl with waiting URLs, by when they may be requested again. A walker claims a host.
CREATE TABLE frontier_host (
    crawl    INTEGER NOT NULL,
    host     INTEGER NOT NULL,
    ready_at INTEGER,
    pages    INTEGER NOT NULL DEFAULT 0,
    job_id   TEXT,
    epoch    INTEGER,
    PRIMARY KEY (crawl, host)
) WITHOUT ROWID;
-- Trap patterns: URL patterns whose pages repeat the same content. URLs of a quarantined pattern wait with the highest
-- possible `due`.
CREATE TABLE trap (
    crawl   INTEGER NOT NULL REFERENCES crawl,
    pattern TEXT NOT NULL,
    state   TEXT NOT NULL CHECK (state IN ('quarantined', 'released')),
    sample  TEXT NOT NULL,
    count   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (crawl, pattern)
) WITHOUT ROWID;

CREATE INDEX frontier_ready ON frontier_host (crawl, ready_at) WHERE ready_at IS NOT NULL;

CREATE TABLE page (
    number         INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused, so that a reader that continues after a number misses none
    key            INTEGER NOT NULL,
    fetched_at     INTEGER NOT NULL,
    bytes          INTEGER NOT NULL,
    crawl          INTEGER NOT NULL REFERENCES crawl,
    chk            INTEGER NOT NULL,
    depth          INTEGER NOT NULL,
    attempt        INTEGER NOT NULL,
    word_count     INTEGER,
    links_internal INTEGER,
    links_external INTEGER,
    duration_ms    REAL,
    body_offset    INTEGER,
    body_length    INTEGER,
    status         INTEGER,
    rendered       INTEGER NOT NULL DEFAULT 0,
    flags          INTEGER NOT NULL DEFAULT 0,
    url            TEXT NOT NULL,
    final_url      TEXT,
    parent         TEXT,
    content_type   TEXT,
    encoding       TEXT,
    title          TEXT,
    description    TEXT,
    canonical      TEXT,
    robots         TEXT,
    lang           TEXT,
    h1             TEXT,
    content_hash   TEXT,
    redirects      TEXT,
    error_code     TEXT,
    error_message  TEXT,
    data           TEXT,
    body_file      TEXT,
    etag           TEXT,
    last_modified  TEXT,
    fingerprint    INTEGER,
    links          BLOB,  -- nine bytes per link: see `pages/links.py`
    CHECK ((body_file IS NULL) = (body_offset IS NULL) AND (body_file IS NULL) = (body_length IS NULL))
);
CREATE UNIQUE INDEX page_once ON page (crawl, key, chk);
CREATE INDEX page_order ON page (crawl, number);

-- Redirect targets: URLs that are fetched for another URL (`via`), which redirects to them, and their `fate`. If a
-- target also waits in the queue of its host, its own fate stays open until it leaves the queue.
CREATE TABLE redirect_target (
    key   INTEGER NOT NULL,
    crawl INTEGER NOT NULL,
    chk   INTEGER NOT NULL,
    fate  INTEGER NOT NULL,
    url   TEXT NOT NULL,
    via   TEXT NOT NULL,
    PRIMARY KEY (crawl, key, chk)
) WITHOUT ROWID;

-- The sitemaps of a crawl that were requested: what they listed, and what was wrong with them.
CREATE TABLE sitemap (
    key        INTEGER NOT NULL,
    fetched_at INTEGER NOT NULL,
    crawl      INTEGER NOT NULL,
    chk        INTEGER NOT NULL,
    listed     INTEGER NOT NULL,
    status     INTEGER,
    url        TEXT NOT NULL,
    problem    TEXT,
    PRIMARY KEY (crawl, key, chk)
) WITHOUT ROWID;

-- Page details for analyses, compressed; only for crawls with `analyze`.
CREATE TABLE page_detail (
    key    INTEGER NOT NULL,
    crawl  INTEGER NOT NULL,
    chk    INTEGER NOT NULL,
    detail BLOB NOT NULL,
    PRIMARY KEY (crawl, key, chk)
);

-- Analyses of crawls, and their findings.
CREATE TABLE analysis (
    number       INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    crawl        INTEGER NOT NULL REFERENCES crawl ON DELETE CASCADE,
    crawl_id     TEXT NOT NULL,
    project      TEXT NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('pending', 'running', 'success', 'failed')),
    state_reason TEXT,
    error        TEXT,
    findings     INTEGER,
    created_at   INTEGER NOT NULL,
    started_at   INTEGER,
    finished_at  INTEGER,
    CHECK ((state IN ('success', 'failed')) = (finished_at IS NOT NULL)),
    CHECK (started_at IS NOT NULL OR state IN ('pending', 'failed'))
);
CREATE INDEX analysis_of_crawl ON analysis (crawl_id, number);
CREATE INDEX analysis_goes_with ON analysis (crawl);
CREATE TABLE finding (
    analysis INTEGER NOT NULL REFERENCES analysis ON DELETE CASCADE,
    analyzer TEXT NOT NULL,
    key      TEXT NOT NULL,
    severity TEXT NOT NULL CHECK (severity IN ('info', 'warning', 'error')),
    message  TEXT NOT NULL,
    facts    TEXT NOT NULL,
    PRIMARY KEY (analysis, analyzer, key)
);

-- Hourly statistics by kind of job; the bots that requested jobs in each hour, and how many they got.
CREATE TABLE job_hour (
    hour   INTEGER NOT NULL,
    kind   TEXT NOT NULL,
    name   TEXT NOT NULL,
    amount REAL NOT NULL,
    PRIMARY KEY (hour, kind, name)
);
CREATE TABLE bot_hour (
    hour    INTEGER NOT NULL,
    token   TEXT NOT NULL,
    bot_id  TEXT NOT NULL,
    pulled  INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    PRIMARY KEY (hour, token, bot_id)
);

-- Policies. `spec`: the definition by its owner; the other columns are the current state. `planned_at` is the next
-- scheduled time, `next_run_at` when that run starts (NULL: disabled, or no further run); `live_crawl` is the last
-- crawl of a site.
CREATE TABLE policy (
    number          INTEGER PRIMARY KEY,
    id              TEXT NOT NULL UNIQUE,
    project         TEXT NOT NULL,
    line            TEXT NOT NULL,  -- the queue of its runs: a capability, or 'site'
    spec            TEXT NOT NULL,
    enabled         INTEGER NOT NULL,
    planned_at      INTEGER NOT NULL,
    next_run_at     INTEGER,
    queued          INTEGER NOT NULL DEFAULT 0,
    frequency_now   INTEGER,
    last_run_at     INTEGER,
    last_success_at INTEGER,
    last_hash       TEXT,
    error_rate      REAL NOT NULL DEFAULT 0,
    runs            INTEGER NOT NULL DEFAULT 0,
    live_crawl      TEXT,
    created_at      INTEGER NOT NULL,
    CHECK (enabled = 1 OR next_run_at IS NULL)
);
CREATE INDEX policy_due ON policy (line, next_run_at, number) WHERE next_run_at IS NOT NULL;
CREATE INDEX policy_owed ON policy (line, number) WHERE queued = 1;
CREATE INDEX policy_project ON policy (project, number);
-- Boosts from business systems: points that are added to the priority of jobs for a URL or a label, for a limited time.
CREATE TABLE business_signal (
    subject TEXT PRIMARY KEY,
    boost   REAL NOT NULL,
    until   INTEGER NOT NULL
);
CREATE INDEX business_signal_over ON business_signal (until);

-- The outbox: events, each written in the commit of the change. The forwarder numbers them later: `event_number` holds
-- the last number, and its lock keeps two forwarders from numbering at once.
CREATE TABLE outbox (
    id         TEXT PRIMARY KEY,
    type       TEXT NOT NULL,
    subject    TEXT NOT NULL,
    body       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    sequence   INTEGER UNIQUE
);
CREATE INDEX outbox_new ON outbox (created_at, id) WHERE sequence IS NULL;
CREATE INDEX outbox_old ON outbox (created_at, sequence) WHERE sequence > 0;
CREATE TABLE event_number (last INTEGER NOT NULL);
INSERT INTO event_number VALUES (0);
-- The cursors of sinks that have no queue of their own.
CREATE TABLE event_cursor (
    sink TEXT PRIMARY KEY,
    seen INTEGER NOT NULL
);

-- Webhooks. `seen`: the last event that was put into its queue.
CREATE TABLE webhook (
    id            TEXT PRIMARY KEY,
    url           TEXT NOT NULL,
    events        TEXT NOT NULL,
    secret        TEXT NOT NULL,
    old_secret    TEXT,
    old_until     INTEGER,
    enabled       INTEGER NOT NULL,
    reason        TEXT,
    seen          INTEGER NOT NULL,
    held_until    INTEGER NOT NULL DEFAULT 0,
    failing_since INTEGER,
    created_at    INTEGER NOT NULL,
    CHECK (enabled = 1 OR reason IS NOT NULL)
);
CREATE TABLE delivery (
    webhook  TEXT NOT NULL REFERENCES webhook ON DELETE CASCADE,
    sequence INTEGER NOT NULL,
    state    TEXT NOT NULL CHECK (state IN ('waiting', 'delivered', 'dead')),
    attempts INTEGER NOT NULL DEFAULT 0,
    next_at  INTEGER NOT NULL,
    status   INTEGER,
    error    TEXT,
    PRIMARY KEY (webhook, sequence)
);
CREATE INDEX delivery_due ON delivery (webhook, next_at) WHERE state = 'waiting';
CREATE INDEX delivery_dead ON delivery (webhook, sequence) WHERE state = 'dead';
CREATE INDEX delivery_event ON delivery (sequence);

-- API tokens. Only the SHA-256 of a token is stored. Rows are kept after a token has ended, because every caller needs
-- a token once the first one has been created.
CREATE TABLE token (
    number       INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    name         TEXT NOT NULL,
    hash         TEXT NOT NULL,
    scopes       TEXT NOT NULL CHECK (scopes <> ''),
    made_by      TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    last_used_at INTEGER,
    revoked_at   INTEGER
);

-- The audit log: `who` is a token or the local user, `address` the client's address.
CREATE TABLE audit_entry (
    number  INTEGER PRIMARY KEY,
    at      INTEGER NOT NULL,
    who     TEXT NOT NULL,
    act     TEXT NOT NULL,
    subject TEXT NOT NULL,
    facts   TEXT NOT NULL,
    address TEXT NOT NULL
);
CREATE INDEX audit_subject ON audit_entry (subject, number);

-- Idempotency keys, kept for a day: the digest of the request, the id of the object that it creates, and the first
-- response.
CREATE TABLE request_key (
    caller     TEXT NOT NULL,
    route      TEXT NOT NULL,
    key        TEXT NOT NULL,
    digest     TEXT NOT NULL,
    subject    TEXT NOT NULL,
    status     INTEGER,
    answer     TEXT,
    location   TEXT,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (caller, route, key),
    CHECK ((status IS NULL) = (answer IS NULL))
);
CREATE INDEX request_key_old ON request_key (created_at);

-- The addresses on which controllers listen, so that no worker sends requests there.
CREATE TABLE listener (
    machine TEXT NOT NULL,
    host    TEXT NOT NULL,
    port    INTEGER NOT NULL,
    until   INTEGER NOT NULL,
    PRIMARY KEY (machine, host, port)
);

-- Written to test whether the store accepts writes.
CREATE TABLE pulse (
    name TEXT PRIMARY KEY,
    at   INTEGER NOT NULL
);
