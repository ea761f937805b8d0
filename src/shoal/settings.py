"""Every setting: type, default, environment name, one sentence; one slice per room; and the rules between them.

Packages get their section in the constructor and never look anything up here. `shoal.settings_loader` reads the values;
whether a listen address may be opened, or a store reached, is checked by whoever opens it.
"""

import os
import re
import resource
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from shoal import __version__
from shoal.base.errors import BadConfig
from shoal.base.parsing import show_duration, show_size
from shoal.base.query_params import SESSION, TRACKING
from shoal.base.setting import SettingsSection, setting
from shoal.base.setting_kinds import (
    BodyPlace,
    Duration,
    FilePath,
    Folder,
    HttpUrl,
    Listen,
    Milliseconds,
    Networks,
    NodeName,
    Patience,
    Peer,
    Proxies,
    RedisUrl,
    Session,
    Size,
    StoreUrl,
    Switch,
    Text,
    Tracking,
    Whole,
)

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "text"]
Backend = Literal["sql", "redis"]
MOST_CONNECTIONS = 50_000


def data_dir(env: Mapping[str, str]) -> Path:
    """Where Shoal keeps what it must not lose, when nobody said where."""
    base = Path(env.get("XDG_DATA_HOME", ""))
    if not base.is_absolute():  # the XDG rule: a relative one is ignored
        base = Path(env.get("HOME") or "~").expanduser() / ".local" / "share"
    return base / "shoal"


def store_in(folder: Path) -> str:
    return f"sqlite:///{folder / 'shoal.db'}"


class DatabaseSettings(SettingsSection):
    """The database of record."""

    data_dir: Folder = setting(
        "SHOAL_DATA_DIR",
        lambda earlier: data_dir(os.environ),
        "Folder for the default store and everything else that must outlive a process.",
        shown="$XDG_DATA_HOME/shoal",
    )
    url: StoreUrl = setting(
        "DATABASE_URL",
        lambda earlier: store_in(earlier["data_dir"]),
        "The store: one SQLite file, or a PostgreSQL database shared by a fleet.",
        secret=True,
        shown="sqlite:///$SHOAL_DATA_DIR/shoal.db",
    )
    pool_size: Whole = setting(
        "SHOAL_DATABASE_POOL", 10, "PostgreSQL connections that one process opens at most.", ge=1, le=500
    )
    connect_timeout: Duration = setting(
        "SHOAL_DATABASE_CONNECT_TIMEOUT", "10s", "How long opening a connection to the store may take."
    )
    statement_timeout: Duration = setting(
        "SHOAL_DATABASE_TIMEOUT", "30s", "How long one statement may run, waiting for locks included."
    )


class RedisSettings(SettingsSection):
    """Redis, which carries lanes and frontiers for a fleet."""

    url: RedisUrl = setting("REDIS_URL", "", "The Redis server.", secret=True, planned=True)


class QueueSettings(SettingsSection):
    """Jobs: leases, retries, dead letters."""

    lease: Duration = setting("SHOAL_LEASE", "10s", "How long a worker may keep a job without extending its lease.")
    extend_every: Duration = setting(
        "SHOAL_LEASE_EXTEND", "3s", "How often a worker extends its leases; less than half of SHOAL_LEASE."
    )
    force_grace: Duration = setting(
        "SHOAL_FORCE_GRACE", "10s", "How long walkers may settle after `stop --force` before their process is killed."
    )
    sweep_every: Duration = setting(
        "SHOAL_LEASE_SWEEP", "2s", "How often leases that ran out are looked for and their jobs put back."
    )
    poll_every: Duration = setting(
        "SHOAL_QUEUE_POLL",
        "1s",
        "The longest an idle worker waits before it looks for jobs again; usually it is told at once.",
    )
    job_attempts: Whole = setting(
        "WORKER_JOB_ATTEMPTS",
        2,
        "How often a failing job is tried in all; a worker's death is not counted.",
        ge=1,
        le=100,
    )
    backoff: Milliseconds = setting(
        "WORKER_BACKOFF_MS",
        5000,
        "Milliseconds before the first retry; each further one waits twice as long.",
        ge=timedelta(0),
        le=timedelta(days=1),
    )
    longest_backoff: Duration = setting("SHOAL_BACKOFF_MAX", "1h", "The longest wait between two tries of a job.")
    poison_limit: Whole = setting(
        "SHOAL_POISON_LIMIT",
        3,
        "Deaths of its worker after which a job that settled nothing is a dead letter.",
        ge=1,
        le=100,
    )
    ageing: Duration = setting(
        "SHOAL_QUEUE_AGEING",
        "60s",
        "How much waiting is worth one point of priority.",
    )
    stall_deadline: Duration = setting(
        "SHOAL_STALL_DEADLINE",
        "10m",
        "A job that settles nothing for this long while work is due is killed.",
    )
    keep_finished: Patience = setting(
        "SHOAL_JOB_RETENTION",
        "7d",
        "How long jobs that are done or cancelled are kept, with their history and results; a run's stay with it.",
    )
    keep_dead: Patience = setting(
        "SHOAL_DEAD_RETENTION", "30d", "How long jobs that failed or expired, the dead letters, are kept."
    )
    keep_hours: Patience = setting("SHOAL_STATS_RETENTION", "90d", "How long counts by the hour are kept.")
    prune_every: Duration = setting("SHOAL_PRUNE", "10m", "How often what is too old is looked for and removed.")
    lanes: Backend = setting("SHOAL_LANES", "sql", "What carries the lanes that workers take jobs from.")


class WorkSettings(SettingsSection):
    """The worker process and its children."""

    concurrency: Whole = setting(
        "WORKER_CONCURRENCY",
        2,
        "Crawls and analyses that one worker runs at once, each in a child.",
        ge=1,
        le=256,
    )
    shutdown_grace: Patience = setting(
        "SHOAL_SHUTDOWN_GRACE",
        "30s",
        "How long a worker told to stop may settle before it hands its jobs back; inf finishes them.",
    )
    child_silence: Duration = setting(
        "SHOAL_CHILD_SILENCE",
        "10s",
        "A child whose loop does not tick for this long is killed; `shoal crawl` only says so.",
    )
    child_memory: Size = setting(
        "SHOAL_CHILD_MEMORY",
        "1GB",
        "A child that has grown past this is replaced after its run.",
        ge=50_000_000,
    )
    child_runs: Whole = setting(
        "SHOAL_CHILD_RUNS", 100, "A child is replaced after this many runs.", ge=1, le=1_000_000
    )
    listen: Peer = setting(
        "SHOAL_WORKER_LISTEN",
        "",
        "Where `shoal worker` answers /healthz, /readyz and /metrics, as a controller does; empty: nowhere.",
    )


Speed = Literal["slow", "normal", "fast", "max"]


@dataclass(frozen=True, slots=True)
class SpeedProfile:
    """How hard one host may be asked."""

    connections: int
    delay: timedelta


SPEEDS: Mapping[Speed, tuple[int | None, timedelta]] = {
    "slow": (1, timedelta(seconds=2)),
    "normal": (2, timedelta(seconds=1)),
    "fast": (8, timedelta(milliseconds=200)),
    "max": (None, timedelta(0)),
}


class CrawlSettings(SettingsSection):
    """A site crawl: its window, its commits, its slices."""

    max_concurrent_curl: Whole = setting(
        "MAX_CONCURRENT_CURL",
        15,
        "Fetches in flight per crawl; set explicitly, it overrides the connections of the speed profile.",
        ge=1,
        le=1000,
    )
    max_concurrent_chrome: Whole = setting(
        "MAX_CONCURRENT_CHROME", 5, "Rendered pages in flight per crawl.", planned=True, ge=1, le=100
    )
    frontier: Backend = setting("SHOAL_FRONTIER", "sql", "What keeps the URLs of a crawl.")
    slice: Duration = setting(
        "SHOAL_SLICE", "10m", "After this long a crawl hands its worker to another run that waits."
    )
    commit_results: Whole = setting(
        "SHOAL_COMMIT_RESULTS", 100, "Results after which a crawl commits what finished.", ge=1, le=10_000
    )
    commit_every: Duration = setting(
        "SHOAL_COMMIT_INTERVAL", "250ms", "Time after which a crawl commits what finished, however little."
    )
    page_attempts: Whole = setting(
        "SHOAL_PAGE_ATTEMPTS",
        4,
        "How often a page is tried in all when the network or the server fails; after a total timeout, twice.",
        ge=1,
        le=20,
    )
    page_backoff: Duration = setting(
        "SHOAL_PAGE_BACKOFF",
        "1s",
        "Wait before a page is tried again; it doubles with each try, and jitter adds to it.",
    )
    max_links: Whole = setting("SHOAL_MAX_LINKS", 10_000, "Links taken from one page.", ge=1, le=1_000_000)
    max_url_length: Whole = setting(
        "SHOAL_MAX_URL", 2083, "Characters of a URL; longer ones are skipped.", ge=100, le=65_536
    )
    journal_lines: Whole = setting(
        "SHOAL_CRAWL_LOG_LINES",
        10_000,
        "Lines that are kept of one crawl's journal; the first ones go.",
        ge=10,
        le=10**6,
    )
    tracking_params: Tracking = setting(
        "SHOAL_TRACKING_PARAMS",
        TRACKING,
        "Query parameters that new crawls leave out because they tell where a visitor came from.",
        shown="the built-in list",
    )
    session_params: Session = setting(
        "SHOAL_SESSION_PARAMS",
        SESSION,
        "Query and path parameters that new crawls leave out because they name a visit.",
        shown="the built-in list",
    )

    def pace(self, speed: Speed, concurrency: int | None = None) -> SpeedProfile:
        """The connections and delay of a profile; a number that somebody set beats the profile's."""
        connections, delay = SPEEDS[speed]
        if concurrency is not None:
            return SpeedProfile(concurrency, delay)
        if connections is None or "max_concurrent_curl" in self.given:
            return SpeedProfile(self.max_concurrent_curl, delay)
        return SpeedProfile(min(connections, self.max_concurrent_curl), delay)


class PageSettings(SettingsSection):
    """Page jobs: single URLs that anybody may ask for."""

    speed: Speed = setting("SHOAL_PAGE_SPEED", "normal", "How hard page jobs ask one host.")
    keep_results: Patience = setting(
        "SHOAL_RESULT_RETENTION", "90d", "How long what policies gave is kept; the last success of each always is."
    )

    @property
    def pace(self) -> SpeedProfile:
        """The connections and the delay of the profile."""
        connections, delay = SPEEDS[self.speed]
        return SpeedProfile(connections or 1000, delay)


class BotSettings(SettingsSection):
    """Bots of others that pull page jobs and push results."""

    lock_ttl: Duration = setting(
        "SHOAL_BOT_LOCK",
        "10m",
        "How long a bot keeps a job without a heartbeat, if no policy says so.",
        ge=timedelta(seconds=5),
        le=timedelta(hours=24),
    )
    grace: Duration = setting(
        "SHOAL_BOT_GRACE",
        "30s",
        "After a controller's start nothing is taken from bots for this long.",
        ge=timedelta(0),
    )
    most_jobs: Whole = setting("SHOAL_BOT_JOBS", 1000, "Jobs that one token may hold at once.", ge=1, le=1_000_000)
    pulls: Whole = setting("SHOAL_BOT_PULLS", 1000, "Pulls that one token may send in a second.", ge=1, le=1_000_000)
    max_result_bytes: Size = setting(
        "SHOAL_MAX_RESULT", "10MB", "Size of what a bot pushes in one request, a batch of results too.", ge=1000
    )


class HostSettings(SettingsSection):
    """Politeness towards one host, shared by everybody who asks it."""

    longest_crawl_delay: Duration = setting(
        "SHOAL_CRAWL_DELAY_MAX",
        "30s",
        "A longer Crawl-delay in robots.txt is cut to this, and the crawl says so.",
    )
    longest_retry_after: Duration = setting(
        "SHOAL_RETRY_AFTER_MAX",
        "1h",
        "A Retry-After up to this holds the host; a longer one counts as absent.",
    )
    backoff: Duration = setting(
        "SHOAL_HOST_BACKOFF",
        "2s",
        "First pause for a host that is held (429, or 503 for several URLs) without a Retry-After.",
    )
    longest_backoff: Duration = setting(
        "SHOAL_HOST_BACKOFF_MAX", "60s", "The pause doubles up to this and ends with a good answer."
    )
    longest_slow_delay: Duration = setting(
        "SHOAL_SLOW_DELAY_MAX",
        "10s",
        "The longest pause that a slow host gets because it is slow; speed `max` takes none.",
    )
    robots_ttl: Duration = setting("SHOAL_ROBOTS_TTL", "24h", "How long a robots.txt is used before it is asked again.")


class EgressSettings(SettingsSection):
    """The only way out: where to, as whom, how much."""

    proxies: Proxies = setting(
        "SHOAL_PROXIES",
        "",
        "Proxies that pages and crawls may ask for by their labels.",
        secret=True,
    )
    allow_networks: Networks = setting(
        "SHOAL_ALLOW_NETWORKS",
        "",
        "Networks that may be crawled although they are not public; every port there.",
    )
    user_agent: Text = setting(
        "SHOAL_USER_AGENT",
        f"Shoal/{__version__} (self-hosted crawler)",
        "How Shoal names itself to servers and in robots.txt.",
        shown="Shoal/VERSION (self-hosted crawler)",
        min_length=1,
        max_length=500,
    )
    connect_timeout: Duration = setting("SHOAL_CONNECT_TIMEOUT", "10s", "Time to reach a server, TLS included.")
    idle_timeout: Duration = setting("SHOAL_IDLE_TIMEOUT", "20s", "The longest silence in the middle of an answer.")
    total_timeout: Duration = setting("SHOAL_FETCH_TIMEOUT", "60s", "Time for one whole request.")
    max_redirects: Whole = setting("SHOAL_MAX_REDIRECTS", 10, "Redirects followed for one URL.", ge=0, le=50)
    max_header_bytes: Size = setting("SHOAL_MAX_HEADER_SIZE", "64KB", "Size of an answer's headers in all.", ge=1000)
    max_headers: Whole = setting("SHOAL_MAX_HEADERS", 100, "Number of an answer's headers.", ge=10, le=10_000)
    max_body_bytes: Size = setting("SHOAL_MAX_BODY", "10MB", "Size of a body as it was sent.", ge=1000)
    max_decoded_bytes: Size = setting("SHOAL_MAX_DECODED", "30MB", "Size of a body once decompressed.", ge=1000)
    max_encodings: Whole = setting("SHOAL_MAX_ENCODINGS", 3, "Content encodings on top of each other.", ge=1, le=10)


class BodySettings(SettingsSection):
    """Where answers are kept as they were sent, for crawls that ask for it."""

    place: BodyPlace = setting(
        "SHOAL_BODIES",
        "",
        "Where kept bodies lie: a folder, or a bucket of an S3-compatible store, which a fleet shares.",
        shown="a folder beside the SQLite file, else $SHOAL_DATA_DIR/bodies",
    )
    endpoint: HttpUrl = setting(
        "SHOAL_S3_ENDPOINT", "", "The object store; empty: Amazon's in SHOAL_S3_REGION.", shown="Amazon S3"
    )
    region: Text = setting("SHOAL_S3_REGION", "us-east-1", "The region that requests are signed for.")
    access_key: Text = setting("SHOAL_S3_ACCESS_KEY", "", "The id of the key for the object store.", secret=True)
    secret_key: Text = setting("SHOAL_S3_SECRET_KEY", "", "The key for the object store.", secret=True)


class PlanSettings(SettingsSection):
    """Policies and the jobs that they make."""

    schedule_every: Duration = setting(
        "SHOAL_SCHEDULE_EVERY",
        "1s",
        "Pause between two looks for policies whose time has come.",
        ge=timedelta(milliseconds=10),
        le=timedelta(minutes=1),
    )
    backlog: Whole = setting(
        "SHOAL_SCHEDULE_BACKLOG",
        "10000",
        "Page jobs of each capability that may wait in the shared lane before due policies of that one have to.",
        ge=1,
        le=10_000_000,
    )
    rules: FilePath = setting(
        "SHOAL_PRIORITY_RULES",
        "",
        "File, JSON or TOML, with the rules that make the priorities of policies' jobs.",
        shown="the built-in rules",
    )
    keep_signals: Patience = setting(
        "SHOAL_SIGNAL_RETENTION", "7d", "How long signals of a business are kept after they have ended."
    )


class EventSettings(SettingsSection):
    """Events and those who are told of them."""

    forward_every: Duration = setting(
        "SHOAL_EVENTS_EVERY",
        "1s",
        "Pause between two looks for events to number and deliver.",
        ge=timedelta(milliseconds=10),
        le=timedelta(minutes=1),
    )
    keep: Duration = setting(
        "SHOAL_EVENTS_KEEP", "14d", "How long events can be read and replayed.", ge=timedelta(hours=1)
    )
    longest: Duration = setting(
        "SHOAL_EVENTS_KEEP_MAX",
        lambda earlier: 4 * earlier["keep"],
        "How long events are kept that the file of events, or the notes on policies, did not take yet.",
        shown="$SHOAL_EVENTS_KEEP times 4",
    )
    file: FilePath = setting(
        "SHOAL_EVENTS_FILE", "", "File that gets every event as a JSON line; of several controllers one writes it."
    )


class RenderSettings(SettingsSection):
    """The render service."""

    url: HttpUrl = setting("RENDERER_URL", "", "The renderer that opens pages in a browser.", secret=True, planned=True)


def most_connections(_: Mapping[str, Any]) -> int:
    """Three quarters of the files that this process may open: the rest is for the store, children and outputs."""
    files, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else max(16, min(files * 3 // 4, MOST_CONNECTIONS))


class ServeSettings(SettingsSection):
    """The controller's HTTP side."""

    listen: Listen = setting("SHOAL_LISTEN", "127.0.0.1:8700", "Where the API and the console listen.")
    max_import_bytes: Size = setting("SHOAL_MAX_IMPORT", "200MB", "Size of a file of policies.", ge=1000)
    max_request_bytes: Size = setting("SHOAL_MAX_REQUEST", "1MB", "Size of a request's body.", ge=1000)
    header_timeout: Duration = setting(
        "SHOAL_REQUEST_HEADER_TIMEOUT", "10s", "Time that a client has to send the headers of a request."
    )
    body_timeout: Duration = setting(
        "SHOAL_REQUEST_BODY_TIMEOUT", "10s", "A request whose body brings less than 1 KB/s for this long is cut."
    )
    max_connections: Whole = setting(
        "SHOAL_MAX_CONNECTIONS",
        most_connections,
        "Connections open at once; a quarter of them is kept for callers with a valid credential.",
        shown="three quarters of the open-files limit, at most 50000",
        ge=1,
        le=1_000_000,
    )
    max_peer_connections: Whole = setting(
        "SHOAL_MAX_PEER_CONNECTIONS",
        lambda earlier: max(1, earlier["max_connections"] // 2),
        "Connections without a valid credential from one address; SHOAL_TRUSTED_PROXIES are not limited.",
        shown="$SHOAL_MAX_CONNECTIONS divided by 2",
        ge=1,
        le=1_000_000,
    )
    tls_cert: FilePath = setting(
        "SHOAL_TLS_CERT", "", "Certificate chain (PEM) to serve HTTPS with; needs SHOAL_TLS_KEY."
    )
    tls_key: FilePath = setting("SHOAL_TLS_KEY", "", "Private key (PEM) of SHOAL_TLS_CERT.")
    public_url: HttpUrl = setting(
        "SHOAL_PUBLIC_URL", "", "The address that people know the console by; other host names are then refused."
    )
    trusted_proxies: Networks = setting(
        "SHOAL_TRUSTED_PROXIES", "", "Proxies whose X-Forwarded-For and X-Forwarded-Proto are believed."
    )
    open_probes: Switch = setting(
        "SHOAL_OPEN_PROBES", False, "Answer /readyz and /metrics also without a token.", shown="false"
    )


class ClientSettings(SettingsSection):
    """Commands that talk to a controller instead of a store."""

    server: HttpUrl = setting("SHOAL_SERVER", "", "The controller that commands talk to; empty: straight to the store.")
    token: Text = setting("SHOAL_TOKEN", "", "The token that commands show to the controller.", secret=True)
    token_file: FilePath = setting("SHOAL_TOKEN_FILE", "", "A file that holds the token, instead of SHOAL_TOKEN.")


def host_as_node_id(_: Mapping[str, Any]) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname()).strip("-")[:63]
    return name or "node"


class GrpcSettings(SettingsSection):
    """The control plane between controllers and nodes."""

    enabled: Switch = setting("GRPC_ENABLED", False, "Serve the control plane.", planned=True, shown="false")
    listen: Listen = setting("GRPC_LISTEN_ADDR", ":50051", "Where the control plane listens.", planned=True)
    controller: Peer = setting(
        "GRPC_ANALYZER_ADDR", "", "The controller that a worker reports to; empty: legacy mode.", planned=True
    )
    node_id: NodeName = setting(
        "GRPC_NODE_ID", host_as_node_id, "The name of this worker in the fleet.", shown="the host's name"
    )
    heartbeat_interval: Duration = setting("GRPC_HEARTBEAT_INTERVAL", "10s", "How often a node reports.", planned=True)
    reconnect_backoff: Duration = setting(
        "GRPC_RECONNECT_BACKOFF", "5s", "First pause before a node connects again.", planned=True
    )
    max_reconnect_backoff: Duration = setting(
        "GRPC_MAX_RECONNECT_BACKOFF", "60s", "The pause doubles up to this.", planned=True
    )


class LogSettings(SettingsSection):
    """Log lines on stderr."""

    level: LogLevel = setting("SHOAL_LOG_LEVEL", "info", "The least important lines that are written.")
    format: LogFormat = setting(
        "SHOAL_LOG_FORMAT",
        "auto",
        "JSON lines, readable text, or by itself: text on a terminal, JSON elsewhere.",
    )
    project_logs: FilePath = setting(
        "SHOAL_PROJECT_LOGS",
        "",
        "Folder in which controllers write the journals of crawls, a file for each project.",
        shown="logs, beside a SQLite store, else in SHOAL_DATA_DIR",
    )
    project_log_size: Size = setting(
        "SHOAL_PROJECT_LOG_SIZE", "10MB", "Size at which such a file is put aside and a new one begun.", ge=1000
    )
    project_logs_kept: Whole = setting(
        "SHOAL_PROJECT_LOGS_KEPT", 5, "How many files of a project are kept aside.", ge=1, le=1000
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All slices together."""

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
    plan: PlanSettings = field(default_factory=PlanSettings)
    events: EventSettings = field(default_factory=EventSettings)
    render: RenderSettings = field(default_factory=RenderSettings)
    serve: ServeSettings = field(default_factory=ServeSettings)
    client: ClientSettings = field(default_factory=ClientSettings)
    grpc: GrpcSettings = field(default_factory=GrpcSettings)
    log: LogSettings = field(default_factory=LogSettings)

    def __post_init__(self) -> None:
        """Every rule between two settings; each names what to change."""
        for holds, key, problem, fix in self._rules():
            if not holds:
                raise BadConfig(key, problem, fix)

    def _rules(self) -> Iterator[tuple[bool, str, str, str]]:
        half = show_duration(self.queue.lease / 2)
        queue, egress, hosts, grpc, serve = self.queue, self.egress, self.hosts, self.grpc, self.serve
        yield (
            queue.extend_every < queue.lease / 2,
            "SHOAL_LEASE_EXTEND",
            f"is {show_duration(queue.extend_every)}, not below half of SHOAL_LEASE",
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
            f"is {show_size(egress.max_body_bytes)}, over SHOAL_MAX_DECODED",
            "raise SHOAL_MAX_DECODED or lower SHOAL_MAX_BODY",
        )
        lone = "SHOAL_TLS_CERT" if serve.tls_cert else "SHOAL_TLS_KEY"
        yield (
            (serve.tls_cert is None) == (serve.tls_key is None),
            lone,
            "is set without its other half",
            "set both SHOAL_TLS_CERT and SHOAL_TLS_KEY, or neither",
        )
        keyed = bool(self.bodies.access_key and self.bodies.secret_key)
        yield (
            keyed or not self.bodies.place.startswith("s3://"),
            "SHOAL_BODIES",
            "names a bucket, and no key for it is set",
            "set SHOAL_S3_ACCESS_KEY and SHOAL_S3_SECRET_KEY",
        )
        for name, backend in (("SHOAL_LANES", queue.lanes), ("SHOAL_FRONTIER", self.crawl.frontier)):
            yield backend == "sql", name, "is redis, which this version does not have yet", "set it to sql"


def _at_most(low: str, lower: timedelta, high: str, upper: timedelta) -> tuple[bool, str, str, str]:
    problem = f"is {show_duration(lower)}, longer than {high} ({show_duration(upper)})"
    return lower <= upper, low, problem, f"set it to at most {show_duration(upper)}, or raise {high}"
