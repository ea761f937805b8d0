"""All settings, with type, default, environment name and description, in one section per package; and the rules between
settings.

Packages get their section in the constructor and never look up settings here. `settings_loader` reads the values.
Whether an address can be listened on, or a store can be reached, is checked only when the address or the store is
opened.
"""

import os
import re
import resource
import socket
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from shoal import __version__
from shoal.base.errors import BadConfig
from shoal.base.parsing import show_duration, show_size
from shoal.base.query_params import SESSION, TRACKING
from shoal.base.setting import (
    AnalyzerCommands,
    BodyPlace,
    Duration,
    DurationOrInf,
    FilePath,
    Folder,
    HttpUrl,
    Listen,
    Milliseconds,
    Networks,
    NodeName,
    Pause,
    Peer,
    Proxies,
    RedisUrl,
    Session,
    SettingsSection,
    Size,
    StoreUrl,
    Switch,
    Text,
    Tracking,
    Whole,
    setting,
)

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "text"]
Backend = Literal["sql", "redis"]
Dispatch = Literal["private", "shared"]
MOST_CONNECTIONS = 50_000


def data_dir(env: Mapping[str, str]) -> Path:
    """Return the default folder for persistent files, by the XDG rules."""
    base = Path(env.get("XDG_DATA_HOME", ""))
    if not base.is_absolute():  # the XDG rules say that relative paths are ignored
        base = Path(env.get("HOME") or "~").expanduser() / ".local" / "share"
    return base / "shoal"


def store_in(folder: Path) -> str:
    return f"sqlite:///{folder / 'shoal.db'}"


class DatabaseSettings(SettingsSection):
    """The database of record."""

    data_dir: Folder = setting(
        "SHOAL_DATA_DIR",
        lambda earlier: data_dir(os.environ),
        "Folder for the default store and other persistent files.",
        shown="$XDG_DATA_HOME/shoal",
    )
    url: StoreUrl = setting(
        "DATABASE_URL",
        lambda earlier: store_in(earlier["data_dir"]),
        "Store URL: a SQLite file, or a PostgreSQL database that a fleet shares.",
        secret=True,
        shown="sqlite:///$SHOAL_DATA_DIR/shoal.db",
    )
    pool_size: Whole = setting(
        "SHOAL_DATABASE_POOL", 10, "Maximum number of PostgreSQL connections per process.", ge=1, le=500
    )
    connect_timeout: Duration = setting(
        "SHOAL_DATABASE_CONNECT_TIMEOUT",
        "5s",
        "Timeout for connecting to the store, for getting a free connection, and for the first response on it.",
    )
    statement_timeout: Duration = setting(
        "SHOAL_DATABASE_TIMEOUT", "30s", "Timeout for one SQL statement, including lock waits."
    )


class RedisSettings(SettingsSection):
    """Redis, for the lanes and frontiers of a fleet."""

    url: RedisUrl = setting("REDIS_URL", "", "URL of the Redis server.", secret=True)
    timeout: Duration = setting("SHOAL_REDIS_TIMEOUT", "5s", "Timeout for connecting to Redis, and for one call.")
    lanes: Backend = setting(
        "SHOAL_LANES", "sql", "Backend of the lanes, from which workers lease jobs; `redis` requires `REDIS_URL`."
    )


class QueueSettings(SettingsSection):
    """Jobs: leases, retries, dead letters, retention."""

    lease: Duration = setting(
        "SHOAL_LEASE",
        "10s",
        "Lease duration: a job returns to its lane this long after its worker last renewed the lease.",
    )
    extend_every: Duration = setting(
        "SHOAL_LEASE_EXTEND", "3s", "Interval of lease renewal; must be less than half of `SHOAL_LEASE`."
    )
    force_grace: Duration = setting(
        "SHOAL_FORCE_GRACE",
        "10s",
        "Grace period of `stop --force` before the processes of a crawl are killed.",
    )
    sweep_every: Duration = setting(
        "SHOAL_LEASE_SWEEP", "2s", "Interval at which jobs with an expired lease are returned to their lane."
    )
    poll_every: Duration = setting(
        "SHOAL_QUEUE_POLL",
        "1s",
        "Maximum interval between two polls of an idle worker; new jobs usually wake it immediately.",
    )
    job_attempts: Whole = setting(
        "WORKER_JOB_ATTEMPTS",
        2,
        "Maximum number of attempts of a failing job; an attempt that ends with the worker's death does not count. A "
        "value set on a worker applies to the jobs that this worker runs, except jobs that set `max_retry`.",
        ge=1,
        le=100,
    )
    backoff: Milliseconds = setting(
        "WORKER_BACKOFF_MS",
        5000,
        "Milliseconds before the first retry; the delay doubles with each further retry.",
        ge=timedelta(0),
        le=timedelta(days=1),
    )
    longest_backoff: Duration = setting("SHOAL_BACKOFF_MAX", "1h", "Maximum delay between two attempts of a job.")
    poison_limit: Whole = setting(
        "SHOAL_POISON_LIMIT",
        3,
        "Maximum number of worker deaths that a job survives without progress in between; one more makes it a dead"
        " letter.",
        ge=1,
        le=100,
    )
    ageing: Duration = setting(
        "SHOAL_QUEUE_AGEING",
        "60s",
        "While a job waits, its priority rises by one point per interval of this length.",
    )
    stall_deadline: Duration = setting(
        "SHOAL_STALL_DEADLINE",
        "10m",
        "Kill a job that makes no progress for this long although work is due.",
    )
    keep_finished: DurationOrInf = setting(
        "SHOAL_JOB_RETENTION",
        "7d",
        "Retention of done and cancelled jobs, with their history and results; a crawl's jobs are kept as long as the "
        "crawl.",
    )
    keep_dead: DurationOrInf = setting(
        "SHOAL_DEAD_RETENTION", "30d", "Retention of dead letters: jobs that failed or expired."
    )
    keep_hours: DurationOrInf = setting("SHOAL_STATS_RETENTION", "90d", "Retention of hourly statistics.")
    prune_every: Duration = setting("SHOAL_PRUNE", "10m", "Interval at which rows past their retention are removed.")

    def backoff_after(self, attempts: int) -> timedelta:
        """Return the delay before a job's next attempt, without jitter. It doubles with each failed attempt."""
        return min(self.backoff * 2.0 ** min(attempts - 1, 40), self.longest_backoff)


class WorkSettings(SettingsSection):
    """The worker process and its children."""

    concurrency: Whole = setting(
        "WORKER_CONCURRENCY",
        2,
        "Number of crawls and analyses that one worker runs at the same time, each in a child process.",
        ge=1,
        le=256,
    )
    shutdown_grace: DurationOrInf = setting(
        "SHOAL_SHUTDOWN_GRACE",
        "30s",
        "A stopping worker ends its child processes and returns its jobs to the queue within this time; with `inf`, it "
        "finishes its jobs.",
    )
    child_silence: Duration = setting(
        "SHOAL_CHILD_SILENCE",
        "10s",
        "Kill a child process whose event loop is blocked for this long; `shoal crawl` only warns.",
    )
    child_memory: Size = setting(
        "SHOAL_CHILD_MEMORY",
        "1GB",
        "Replace a child process after its run if it uses more memory than this.",
        ge=50_000_000,
    )
    child_runs: Whole = setting(
        "SHOAL_CHILD_RUNS", 100, "Replace a child process after this many runs.", ge=1, le=1_000_000
    )
    listen: Peer = setting(
        "SHOAL_WORKER_LISTEN",
        "",
        "Address on which `shoal worker` serves `/healthz`, `/readyz` and `/metrics`; off by default.",
    )


Speed = Literal["slow", "normal", "fast", "max"]


class SpeedProfile(Struct, frozen=True):
    """Request rate per host: connections and delay."""

    connections: int
    delay: timedelta

    @property
    def ease(self) -> float:
        """Extra delay in seconds for each second that a slow host takes to respond; 0 for a profile without a delay."""
        return 2 / self.connections if self.delay else 0.0


SPEEDS: Mapping[Speed, tuple[int | None, timedelta]] = {
    "slow": (1, timedelta(seconds=2)),
    "normal": (2, timedelta(seconds=1)),
    "fast": (8, timedelta(milliseconds=200)),
    "max": (None, timedelta(0)),
}


class CrawlSettings(SettingsSection):
    """Site crawls: concurrency, commits, retries."""

    max_concurrent_curl: Whole = setting(
        "MAX_CONCURRENT_CURL",
        15,
        "Maximum number of concurrent requests per crawl. An explicit value also replaces the number of connections"
        " per host that the crawl's speed sets; the delay between requests does not change.",
        ge=1,
        le=1000,
    )
    max_concurrent_chrome: Whole = setting(
        "MAX_CONCURRENT_CHROME", 5, "Maximum number of pages rendered at the same time per crawl.", ge=1, le=100
    )
    frontier: Backend = setting(
        "SHOAL_FRONTIER", "sql", "Backend of the frontiers, which hold the URLs that crawls still have to fetch."
    )
    slice: Duration = setting("SHOAL_SLICE", "10m", "Time after which a crawl yields its worker to a waiting run.")
    commit_results: Whole = setting(
        "SHOAL_COMMIT_RESULTS", 100, "Maximum number of page results that a crawl stores per commit.", ge=1, le=10_000
    )
    commit_every: Duration = setting("SHOAL_COMMIT_INTERVAL", "250ms", "Maximum time between two commits of a crawl.")
    page_attempts: Whole = setting(
        "SHOAL_PAGE_ATTEMPTS",
        4,
        "Maximum number of attempts to fetch a page if the network or the server fails; after a total timeout, the "
        "maximum is two.",
        ge=1,
        le=20,
    )
    page_backoff: Duration = setting(
        "SHOAL_PAGE_BACKOFF",
        "1s",
        "Delay before a page is retried. It doubles with each attempt, and jitter is added.",
    )
    max_links: Whole = setting(
        "SHOAL_MAX_LINKS", 10_000, "Maximum number of links read from one page.", ge=1, le=1_000_000
    )
    max_url_length: Whole = setting(
        "SHOAL_MAX_URL", 2083, "Maximum length of a URL in characters; longer URLs are skipped.", ge=100, le=65_536
    )
    journal_lines: Whole = setting(
        "SHOAL_CRAWL_LOG_LINES",
        10_000,
        "Maximum number of journal entries per crawl; beyond it, the oldest entries are removed.",
        ge=10,
        le=10**6,
    )
    tracking_params: Tracking = setting(
        "SHOAL_TRACKING_PARAMS",
        TRACKING,
        "Tracking parameters that new crawls remove from URLs.",
        shown="the built-in list",
    )
    session_params: Session = setting(
        "SHOAL_SESSION_PARAMS",
        SESSION,
        "Session parameters that new crawls remove from the query and the path of URLs.",
        shown="the built-in list",
    )

    @property
    def connections_words(self) -> str:
        """The number of connections of a crawl, as a worker shows it when it starts."""
        if "max_concurrent_curl" in self.given:
            return f"{self.max_concurrent_curl} per crawl and per host; the crawl's speed sets the delay"
        return f"{self.max_concurrent_curl} per crawl; the crawl's speed sets the number per host and the delay"

    def speed_profile(self, speed: Speed, concurrency: int | None = None) -> SpeedProfile:
        """Return the connections and the delay of a profile. An explicit number replaces the profile's connections."""
        connections, delay = SPEEDS[speed]
        if concurrency is not None:
            return SpeedProfile(concurrency, delay)
        if connections is None or "max_concurrent_curl" in self.given:
            return SpeedProfile(self.max_concurrent_curl, delay)
        return SpeedProfile(min(connections, self.max_concurrent_curl), delay)


class PageSettings(SettingsSection):
    """Page jobs: single URLs."""

    speed: Speed = setting("SHOAL_PAGE_SPEED", "normal", "Request rate per host of page jobs.")
    keep_results: DurationOrInf = setting(
        "SHOAL_RESULT_RETENTION",
        "90d",
        "Retention of the results of policies and scrapes; the last successful result of each policy is always kept.",
    )

    @property
    def speed_profile(self) -> SpeedProfile:
        """Return the connections and the delay of the profile."""
        connections, delay = SPEEDS[self.speed]
        return SpeedProfile(connections or 1000, delay)


class BotSettings(SettingsSection):
    """Bots that pull page jobs and push results."""

    lock_ttl: Duration = setting(
        "SHOAL_BOT_LOCK",
        "10m",
        "Lease duration of a bot's job; a heartbeat renews the lease. A policy may set a different duration.",
        ge=timedelta(seconds=5),
        le=timedelta(hours=24),
    )
    longest_lock: Duration = setting(
        "SHOAL_BOT_LONGEST_LOCK",
        "2h",
        "Maximum time for which a bot can keep a job by heartbeats; a policy's `lock_ttl` takes precedence if longer.",
        ge=timedelta(seconds=5),
    )
    grace: Pause = setting(
        "SHOAL_BOT_GRACE",
        "30s",
        "Grace period after the start of a controller, during which no bot's lease expires.",
        ge=timedelta(0),
    )
    most_jobs: Whole = setting(
        "SHOAL_BOT_JOBS", 1000, "Maximum number of jobs that one token may hold at the same time.", ge=1, le=1_000_000
    )
    pulls: Whole = setting(
        "SHOAL_BOT_PULLS", 1000, "Rate limit: pull requests per second and token.", ge=1, le=1_000_000
    )
    max_result_bytes: Size = setting(
        "SHOAL_MAX_RESULT",
        "10MB",
        "Maximum size of a bot's result request, single or batch, and of the content of a scrape.",
        ge=1000,
    )


class HostSettings(SettingsSection):
    """Politeness towards a host, shared by all processes."""

    longest_crawl_delay: Duration = setting(
        "SHOAL_CRAWL_DELAY_MAX",
        "30s",
        "Maximum Crawl-delay to honour; a longer Crawl-delay in robots.txt is reduced to this value and logged.",
    )
    longest_retry_after: Duration = setting(
        "SHOAL_RETRY_AFTER_MAX",
        "1h",
        "Maximum Retry-After to honour; a longer Retry-After is ignored.",
    )
    backoff: Duration = setting(
        "SHOAL_HOST_BACKOFF",
        "2s",
        "First back-off of a host that responds with 429, or with 503 for several URLs, and sends no Retry-After.",
    )
    longest_backoff: Duration = setting(
        "SHOAL_HOST_BACKOFF_MAX",
        "60s",
        "Maximum back-off of a host. The back-off doubles up to this value, and a success resets it.",
    )
    longest_slow_delay: Duration = setting(
        "SHOAL_SLOW_DELAY_MAX",
        "10s",
        "Maximum extra delay for a slow host; at speed `max` there is no extra delay.",
    )


class EgressSettings(SettingsSection):
    """Outgoing requests: allowed networks, identity, limits."""

    proxies: Proxies = setting(
        "SHOAL_PROXIES",
        "",
        "Proxies that crawls and page jobs may choose by label.",
        secret=True,
    )
    allow_networks: Networks = setting(
        "SHOAL_ALLOW_NETWORKS",
        "",
        "Private networks (CIDR) that may be requested, on every port; all other private networks are blocked (SSRF "
        "protection).",
    )
    agent: Text = setting(
        "SHOAL_USER_AGENT",
        f"Shoal/{__version__} (self-hosted crawler)",
        "User-Agent header; the name at its start selects the rules in robots.txt.",
        shown="Shoal/VERSION (self-hosted crawler)",
        min_length=1,
        max_length=500,
    )
    contact: HttpUrl = setting(
        "SHOAL_CONTACT",
        "",
        "URL at which site owners can reach you; it is added to the User-Agent header.",
    )
    connect_timeout: Duration = setting(
        "SHOAL_CONNECT_TIMEOUT", "10s", "Timeout for connecting to a server, including TLS."
    )
    idle_timeout: Duration = setting("SHOAL_IDLE_TIMEOUT", "20s", "Timeout for receiving the next bytes of a response.")
    total_timeout: Duration = setting("SHOAL_FETCH_TIMEOUT", "60s", "Timeout for one whole request.")
    max_redirects: Whole = setting("SHOAL_MAX_REDIRECTS", 10, "Maximum number of redirects per URL.", ge=0, le=50)
    max_header_bytes: Size = setting(
        "SHOAL_MAX_HEADER_SIZE", "64KB", "Maximum total size of response headers.", ge=1000
    )
    max_headers: Whole = setting("SHOAL_MAX_HEADERS", 100, "Maximum number of response headers.", ge=10, le=10_000)
    max_body_bytes: Size = setting(
        "SHOAL_MAX_BODY", "10MB", "Maximum size of a response body before decompression.", ge=1000
    )
    max_decoded_bytes: Size = setting(
        "SHOAL_MAX_DECODED", "30MB", "Maximum size of a response body after decompression.", ge=1000
    )
    max_encodings: Whole = setting("SHOAL_MAX_ENCODINGS", 3, "Maximum number of nested content encodings.", ge=1, le=10)

    @property
    def user_agent(self) -> str:
        """The User-Agent header: the agent, and the contact URL if there is one."""
        return f"{self.agent} (+{self.contact})" if self.contact else self.agent


class BodySettings(SettingsSection):
    """The store of response bodies, for crawls that keep them."""

    place: BodyPlace = setting(
        "SHOAL_BODIES",
        "",
        "Where bodies are stored: a folder, or a bucket of an S3-compatible store, which a fleet can share.",
        shown="a folder beside the SQLite file, else $SHOAL_DATA_DIR/bodies",
    )
    endpoint: HttpUrl = setting(
        "SHOAL_S3_ENDPOINT", "", "S3 endpoint; defaults to AWS in the region `SHOAL_S3_REGION`.", shown="Amazon S3"
    )
    region: Text = setting("SHOAL_S3_REGION", "us-east-1", "S3 region used to sign requests.")
    access_key: Text = setting("SHOAL_S3_ACCESS_KEY", "", "S3 access key id.", secret=True)
    secret_key: Text = setting("SHOAL_S3_SECRET_KEY", "", "S3 secret access key.", secret=True)


class AuditSettings(SettingsSection):
    """Analyses of crawls."""

    findings_per_code: Whole = setting(
        "SHOAL_FINDINGS_PER_CODE",
        10_000,
        "Maximum number of findings stored per code and analysis; the counts are always exact.",
        ge=1,
        le=10_000_000,
    )
    remeasured_pages: Whole = setting(
        "SHOAL_REMEASURED_PAGES",
        20,
        "Before response times fail a gate, slow pages are requested again: at most this many.",
        ge=0,
        le=1000,
    )
    commands: AnalyzerCommands = setting(
        "SHOAL_ANALYZERS",
        "",
        "External analyzers as `NAME=COMMAND`, separated by commas; their time, memory and output are limited.",
    )
    optional_analyzers: Text = setting(
        "SHOAL_OPTIONAL_ANALYZERS",
        "",
        "Names of optional analyzers, separated by commas: if one of them fails, the analysis does not fail.",
    )
    command_timeout: Duration = setting("SHOAL_ANALYZER_TIMEOUT", "5m", "Timeout of an external analyzer.")
    command_memory: Size = setting("SHOAL_ANALYZER_MEMORY", "1GiB", "Memory limit of an external analyzer.")
    command_output: Size = setting("SHOAL_ANALYZER_OUTPUT", "50MB", "Maximum output of an external analyzer.")
    artifacts: BodyPlace = setting(
        "SHOAL_ARTIFACTS",
        "",
        "Where the files that analyzers produce are stored: a folder, or a bucket of an S3-compatible store.",
        shown="a folder beside the SQLite file, else $SHOAL_DATA_DIR/artifacts",
    )


class ForgeSettings(SettingsSection):
    """Forges (GitHub, GitLab, Gitea, Forgejo) that show the verdict of an analysis as the status of a commit."""

    github_api: HttpUrl = setting("SHOAL_GITHUB_API", "https://api.github.com", "Base URL of the API of GitHub.")
    github_token: Text = setting("SHOAL_GITHUB_TOKEN", "", "GitHub token that may write commit statuses.", secret=True)
    gitlab_api: HttpUrl = setting("SHOAL_GITLAB_API", "https://gitlab.com/api/v4", "Base URL of the API of GitLab.")
    gitlab_token: Text = setting(
        "SHOAL_GITLAB_TOKEN",
        "",
        "GitLab token that may write commit statuses; it needs the scope `api`.",
        secret=True,
    )
    gitea_api: HttpUrl = setting(
        "SHOAL_GITEA_API", "", "Base URL of the API of Gitea or Forgejo, such as `https://codeberg.org/api/v1`."
    )
    gitea_token: Text = setting(
        "SHOAL_GITEA_TOKEN", "", "Token of Gitea or Forgejo that may write commit statuses.", secret=True
    )


class PlanSettings(SettingsSection):
    """Policies and their scheduler."""

    schedule_every: Duration = setting(
        "SHOAL_SCHEDULE_EVERY",
        "1s",
        "Interval at which the scheduler looks for due policies.",
        ge=timedelta(milliseconds=10),
        le=timedelta(minutes=1),
    )
    backlog: Whole = setting(
        "SHOAL_SCHEDULE_BACKLOG",
        "10000",
        "Back-pressure limit per capability: while this many page jobs that need it wait, the scheduler creates no"
        " more of them.",
        ge=1,
        le=10_000_000,
    )
    rules: FilePath = setting(
        "SHOAL_PRIORITY_RULES",
        "",
        "JSON or TOML file with the rules for the priorities of policies' jobs.",
        shown="the built-in rules",
    )
    keep_signals: DurationOrInf = setting(
        "SHOAL_SIGNAL_RETENTION", "7d", "Retention of priority signals after the end of their validity."
    )


class EventSettings(SettingsSection):
    """Events: delivery and retention."""

    forward_every: Duration = setting(
        "SHOAL_EVENTS_EVERY",
        "1s",
        "Interval at which new events are numbered and delivered.",
        ge=timedelta(milliseconds=10),
        le=timedelta(minutes=1),
    )
    keep: Duration = setting(
        "SHOAL_EVENTS_KEEP",
        "14d",
        "Retention of events: how long they can be read and replayed.",
        ge=timedelta(hours=1),
    )
    longest: Duration = setting(
        "SHOAL_EVENTS_KEEP_MAX",
        lambda earlier: 4 * earlier["keep"],
        "How long events are kept at most if the event file does not contain them, or the scheduler has not read them.",
        shown="$SHOAL_EVENTS_KEEP times 4",
    )
    file: FilePath = setting(
        "SHOAL_EVENTS_FILE",
        "",
        "File to which every event is appended as a JSON line; only one controller at a time writes to it.",
    )


class RenderSettings(SettingsSection):
    """Rendering: the browsers, and the render service."""

    url: HttpUrl = setting(
        "RENDERER_URL",
        "",
        "URL of the render service. If empty, each process that renders pages starts its own browsers.",
        secret=True,
    )
    token: Text = setting(
        "SHOAL_RENDERER_TOKEN", "", "Token that clients must send to the render service.", secret=True
    )
    listen: Listen = setting(
        "SHOAL_RENDERER_LISTEN",
        ":3000",
        "Address on which `shoal renderer` listens; without a token, it listens on loopback only.",
    )
    pages: Whole = setting(
        "SHOAL_RENDERER_PAGES", 5, "Number of pages that the render service renders at the same time.", ge=1, le=100
    )
    queue: Whole = setting(
        "SHOAL_RENDERER_QUEUE",
        20,
        "Number of pages that may wait at the render service; further pages are refused with 429.",
        ge=0,
        le=10_000,
    )
    chromium: Text = setting(
        "SHOAL_CHROMIUM",
        "",
        "Path of the Chromium to start.",
        shown="the first Chromium found on the PATH; headless shells are preferred",
    )
    timeout: Duration = setting(
        "SHOAL_RENDER_TIMEOUT", "30s", "Time after which a page is read as it is, even if it is still loading."
    )
    browser_pages: Whole = setting(
        "SHOAL_BROWSER_PAGES", 200, "Replace a browser after this many pages.", ge=1, le=1_000_000
    )
    browser_age: Duration = setting("SHOAL_BROWSER_AGE", "30m", "Replace a browser after this time.")
    browser_memory: Size = setting(
        "SHOAL_BROWSER_MEMORY",
        "2GB",
        "Replace a browser if all its processes together use more memory than this.",
        ge=100_000_000,
    )
    page_memory: Size = setting(
        "SHOAL_RENDER_MEMORY",
        "1GB",
        "Kill a page's browser process if it uses more memory than this. The page is tried again once, then it fails.",
        ge=50_000_000,
    )
    screenshots: FilePath = setting(
        "SHOAL_SCREENSHOTS", "", "Folder in which crawls store a screenshot of each rendered page."
    )


def most_connections(_: Mapping[str, Any]) -> int:
    """Return three quarters of the open-files limit; the rest is for the store, child processes and outputs."""
    files, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else max(16, min(files * 3 // 4, MOST_CONNECTIONS))


class ServeSettings(SettingsSection):
    """The HTTP server of the controller."""

    listen: Listen = setting("SHOAL_LISTEN", "127.0.0.1:8700", "Address on which the API and the console listen.")
    max_import_bytes: Size = setting("SHOAL_MAX_IMPORT", "200MB", "Maximum size of an imported policy file.", ge=1000)
    max_request_bytes: Size = setting("SHOAL_MAX_REQUEST", "1MB", "Maximum size of a request body.", ge=1000)
    header_timeout: Duration = setting(
        "SHOAL_REQUEST_HEADER_TIMEOUT", "10s", "Timeout for receiving the headers of a request."
    )
    body_timeout: Duration = setting(
        "SHOAL_REQUEST_BODY_TIMEOUT",
        "10s",
        "Close a connection if its request body stays slower than 1 KB/s for this long.",
    )
    max_connections: Whole = setting(
        "SHOAL_MAX_CONNECTIONS",
        most_connections,
        "Maximum number of open connections per port. Callers without a valid token may use three quarters of these "
        "connections, and one eighth on the gRPC port.",
        shown="three quarters of the open-files limit, at most 50000",
        ge=1,
        le=1_000_000,
    )
    max_peer_connections: Whole = setting(
        "SHOAL_MAX_PEER_CONNECTIONS",
        lambda earlier: max(1, earlier["max_connections"] // 2),
        "Maximum number of connections without a valid token from one address; addresses in `SHOAL_TRUSTED_PROXIES`"
        " are exempt.",
        shown="$SHOAL_MAX_CONNECTIONS divided by 2",
        ge=1,
        le=1_000_000,
    )
    tls_cert: FilePath = setting(
        "SHOAL_TLS_CERT", "", "TLS certificate chain (PEM) for HTTPS; requires `SHOAL_TLS_KEY`."
    )
    tls_key: FilePath = setting("SHOAL_TLS_KEY", "", "TLS private key (PEM) for `SHOAL_TLS_CERT`.")
    public_url: HttpUrl = setting(
        "SHOAL_PUBLIC_URL", "", "Public URL of the console. If set, requests for other host names are rejected."
    )
    trusted_proxies: Networks = setting(
        "SHOAL_TRUSTED_PROXIES",
        "",
        "Reverse proxies (CIDR) whose X-Forwarded-For and X-Forwarded-Proto headers are trusted.",
    )
    open_probes: Switch = setting(
        "SHOAL_OPEN_PROBES", False, "Serve `/readyz` and `/metrics` without a token.", shown="false"
    )


class ClientSettings(SettingsSection):
    """Commands that use a controller instead of a store."""

    server: HttpUrl = setting(
        "SHOAL_SERVER", "", "URL of the controller that commands use; by default, commands use the store directly."
    )
    token: Text = setting("SHOAL_TOKEN", "", "API token that commands send to the controller.", secret=True)
    token_file: FilePath = setting("SHOAL_TOKEN_FILE", "", "File that contains the API token; replaces `SHOAL_TOKEN`.")


def host_as_node_id(_: Mapping[str, Any]) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname()).strip("-")[:63]
    return name or "node"


class GrpcSettings(SettingsSection):
    """The control plane between controllers and nodes."""

    enabled: Switch = setting("GRPC_ENABLED", False, "Run the gRPC control plane in controllers.", shown="false")
    listen: Listen = setting(
        "GRPC_LISTEN_ADDR",
        ":50051",
        "Address on which the gRPC control plane listens; if there are no tokens, it listens on loopback only.",
    )
    controller: Peer = setting(
        "GRPC_ANALYZER_ADDR",
        "",
        "Address of the controller that a worker reports to; empty for legacy mode, without a control plane.",
    )
    node_id: NodeName = setting(
        "GRPC_NODE_ID", host_as_node_id, "Name of this worker in the fleet.", shown="the host's name"
    )
    heartbeat_interval: Duration = setting(
        "GRPC_HEARTBEAT_INTERVAL",
        "10s",
        "Interval of a node's heartbeats; a controller with many nodes may ask for a longer one.",
        ge=timedelta(milliseconds=100),
        le=timedelta(minutes=10),
    )
    reconnect_backoff: Duration = setting(
        "GRPC_RECONNECT_BACKOFF",
        "5s",
        "Delay before a node reconnects; a random part of up to half the delay is added.",
        ge=timedelta(milliseconds=10),
    )
    max_reconnect_backoff: Duration = setting(
        "GRPC_MAX_RECONNECT_BACKOFF",
        "60s",
        "Maximum delay before a node reconnects; the delay doubles up to this value.",
    )
    token: Text = setting(
        "SHOAL_NODE_TOKEN",
        "",
        "Token of a worker. It must have the role `node` and be issued for the worker's node id.",
        secret=True,
    )
    peer_streams: Whole = setting(
        "SHOAL_GRPC_PEER_STREAMS",
        200,
        "Maximum number of nodes that connect to one controller from the same address.",
        ge=1,
        le=1_000_000,
    )
    ca: FilePath = setting(
        "SHOAL_GRPC_CA",
        "",
        "CA certificates (PEM) with which a worker verifies its controller. Controllers use SHOAL_TLS_CERT.",
        shown="no TLS",
    )


class FleetSettings(SettingsSection):
    """Dispatch of jobs to nodes, and back-pressure."""

    dispatch: Dispatch = setting(
        "SHOAL_DISPATCH",
        "private",
        "Where new jobs wait while nodes are connected: `private` means in the private lane of a healthy node, "
        "`shared` means in the lane that all workers share.",
    )
    offer_ttl: Duration = setting(
        "SHOAL_OFFER_TTL",
        "10s",
        "How long a job waits in a node's private lane before every worker may take it.",
        ge=timedelta(milliseconds=100),
        le=timedelta(hours=1),
    )
    shared_depth_max: Whole = setting(
        "SHOAL_SHARED_DEPTH_MAX",
        10_000,
        "Back-pressure limit while no nodes are connected: batches of jobs are refused if this many jobs wait in the "
        "shared lane.",
        ge=1,
        le=10_000_000,
    )
    keep_lost: Duration = setting(
        "SHOAL_NODES_KEEP", "24h", "How long a lost node stays in the list of nodes.", ge=timedelta(minutes=1)
    )


class LogSettings(SettingsSection):
    """Log lines on stderr."""

    level: LogLevel = setting("SHOAL_LOG_LEVEL", "info", "Minimum level of log lines; others are not written.")
    format: LogFormat = setting(
        "SHOAL_LOG_FORMAT",
        "auto",
        "Log format; `auto` writes text on a terminal and JSON elsewhere.",
    )
    project_logs: FilePath = setting(
        "SHOAL_PROJECT_LOGS",
        "",
        "Folder in which controllers write the crawl logs, one file per project.",
        shown="the folder logs beside the SQLite file, otherwise in SHOAL_DATA_DIR",
    )
    project_log_size: Size = setting(
        "SHOAL_PROJECT_LOG_SIZE", "10MB", "Size at which a project log is rotated.", ge=1000
    )
    project_logs_kept: Whole = setting(
        "SHOAL_PROJECT_LOGS_KEPT", 5, "Number of rotated log files kept per project.", ge=1, le=1000
    )


class Settings(Struct, frozen=True):
    """All sections together."""

    database: DatabaseSettings = field(default_factory=DatabaseSettings)
    redis: RedisSettings = field(default_factory=RedisSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    work: WorkSettings = field(default_factory=WorkSettings)
    crawl: CrawlSettings = field(default_factory=CrawlSettings)
    pages: PageSettings = field(default_factory=PageSettings)
    bots: BotSettings = field(default_factory=BotSettings)
    hosts: HostSettings = field(default_factory=HostSettings)
    egress: EgressSettings = field(default_factory=EgressSettings)
    bodies: BodySettings = field(default_factory=BodySettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    forges: ForgeSettings = field(default_factory=ForgeSettings)
    plan: PlanSettings = field(default_factory=PlanSettings)
    events: EventSettings = field(default_factory=EventSettings)
    render: RenderSettings = field(default_factory=RenderSettings)
    serve: ServeSettings = field(default_factory=ServeSettings)
    client: ClientSettings = field(default_factory=ClientSettings)
    grpc: GrpcSettings = field(default_factory=GrpcSettings)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    log: LogSettings = field(default_factory=LogSettings)

    def __post_init__(self) -> None:
        """Check the rules between settings; each error names what to change."""
        for holds, key, problem, fix in self._rules():
            if not holds:
                raise BadConfig(key, problem, fix)

    def _rules(self) -> Iterator[tuple[bool, str, str, str]]:
        half = show_duration(self.queue.lease / 2)
        queue, egress, hosts, grpc, serve = self.queue, self.egress, self.hosts, self.grpc, self.serve
        yield (
            queue.extend_every < queue.lease / 2,
            "SHOAL_LEASE_EXTEND",
            f"is {show_duration(queue.extend_every)}, which is not less than half of SHOAL_LEASE",
            f"set it below {half}, or raise SHOAL_LEASE",
        )
        yield _at_most("SHOAL_LEASE_SWEEP", queue.sweep_every, "SHOAL_LEASE", queue.lease)
        yield _at_most("SHOAL_LEASE", queue.lease, "SHOAL_STALL_DEADLINE", queue.stall_deadline)
        yield _at_most("WORKER_BACKOFF_MS", queue.backoff, "SHOAL_BACKOFF_MAX", queue.longest_backoff)
        yield _at_most("SHOAL_HOST_BACKOFF", hosts.backoff, "SHOAL_HOST_BACKOFF_MAX", hosts.longest_backoff)
        yield _at_most(
            "GRPC_RECONNECT_BACKOFF",
            grpc.reconnect_backoff,
            "GRPC_MAX_RECONNECT_BACKOFF",
            grpc.max_reconnect_backoff,
        )
        yield _at_most("SHOAL_CONNECT_TIMEOUT", egress.connect_timeout, "SHOAL_FETCH_TIMEOUT", egress.total_timeout)
        yield _at_most("SHOAL_EVENTS_KEEP", self.events.keep, "SHOAL_EVENTS_KEEP_MAX", self.events.longest)
        yield (
            egress.max_body_bytes <= egress.max_decoded_bytes,
            "SHOAL_MAX_BODY",
            f"is {show_size(egress.max_body_bytes)}, which is more than SHOAL_MAX_DECODED",
            "raise SHOAL_MAX_DECODED or lower SHOAL_MAX_BODY",
        )
        lone = "SHOAL_TLS_CERT" if serve.tls_cert else "SHOAL_TLS_KEY"
        yield (
            (serve.tls_cert is None) == (serve.tls_key is None),
            lone,
            "is set without the other",
            "set both SHOAL_TLS_CERT and SHOAL_TLS_KEY, or neither",
        )
        keyed = bool(self.bodies.access_key and self.bodies.secret_key)
        yield (
            keyed or not self.bodies.place.startswith("s3://"),
            "SHOAL_BODIES",
            "is a bucket, but its access key is not set",
            "set SHOAL_S3_ACCESS_KEY and SHOAL_S3_SECRET_KEY",
        )
        has_server = self.crawl.frontier != "redis" or bool(self.redis.url)
        no_server = "is redis, but REDIS_URL is not set"
        yield has_server, "SHOAL_FRONTIER", no_server, "set it to sql, or set REDIS_URL"
        has_lanes = self.redis.lanes != "redis" or bool(self.redis.url)
        yield has_lanes, "SHOAL_LANES", no_server, "set it to sql, or set REDIS_URL"


def _at_most(low: str, lower: timedelta, high: str, upper: timedelta) -> tuple[bool, str, str, str]:
    problem = f"is {show_duration(lower)}, longer than {high} ({show_duration(upper)})"
    return lower <= upper, low, problem, f"set it to at most {show_duration(upper)}, or raise {high}"
