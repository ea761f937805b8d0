"""The composition root: the only module that names drivers. Job runners are created in `shoal.runners`."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.base.clock import Clock, SystemClock
from shoal.base.database import Tx
from shoal.base.disk import readable_by_others
from shoal.base.errors import BadConfig, NotFound
from shoal.base.ids import JobId
from shoal.base.parsing import Address
from shoal.base.signals import Signals
from shoal.crawl.journal.journal import Journal
from shoal.crawl.lifecycle.crawls import KIND, Crawls
from shoal.crawl.store import FrontierStore
from shoal.egress import AddressRule, Egress, Endpoint, Proxies, is_local, listening
from shoal.egress.address import Address as IpAddress
from shoal.hosts.controller_addresses import AddressAnnouncer, ControllerAddresses
from shoal.hosts.store import HostStore
from shoal.pages.bodies import BodyStore
from shoal.pages.store import PageStore
from shoal.queue.janitor import Janitor
from shoal.queue.job import Fence, LostJob, RunListener
from shoal.queue.queue import Queue
from shoal.queue.states import Move
from shoal.queue.wake import QuietWake, Wake, announcing
from shoal.settings import DatabaseSettings, Settings, SpeedProfile
from shoal.store.bodies.folder import FolderBodies
from shoal.store.sql.controller_addresses import SqlListeners
from shoal.store.sql.crawls import SqlCrawlStore
from shoal.store.sql.frontier import SqlFrontier
from shoal.store.sql.hosts import SqlHostStore
from shoal.store.sql.jobs import SqlJobStore
from shoal.store.sql.journal import SqlJournalStore
from shoal.store.sql.outbox import SqlOutbox
from shoal.store.sql.pages import SqlPageStore
from shoal.store.sql.sqlite import SqliteDatabase

# Modules that most commands never need are imported where they are used, to keep the start of small crawls fast.
if TYPE_CHECKING:
    import asyncpg

    from shoal.access.audit_log import AuditLog
    from shoal.access.idempotency import Idempotency
    from shoal.access.tokens import Tokens
    from shoal.audit.analyses import Analyses
    from shoal.base.service import Chore
    from shoal.crawl.dump.dump import CrawlDump
    from shoal.crawl.frontier.admin import FrontierAdmin
    from shoal.crawl.frontier.admin_store import FrontierAdminStore
    from shoal.crawl.journal.files import JournalFiles
    from shoal.events.webhooks import Webhooks
    from shoal.page_jobs.bots import Bots
    from shoal.page_jobs.groups import Groups
    from shoal.page_jobs.history import History
    from shoal.page_jobs.ingest import Ingest
    from shoal.page_jobs.leasing import PageTask
    from shoal.page_jobs.long_poll import LongPoll
    from shoal.plan.importer import PolicyImporter
    from shoal.plan.policies import Policies
    from shoal.plan.priority import PriorityRule
    from shoal.queue.job_admin import JobAdmin
    from shoal.serve.crawl_feed import CrawlFeeds
    from shoal.store.sql.postgres import PostgresDatabase

    SqlDatabase = SqliteDatabase | PostgresDatabase


@dataclass(frozen=True, slots=True)
class App:
    """The wired packages of one process, on one store."""

    settings: Settings
    clock: Clock
    signals: Signals
    database: "SqlDatabase"
    queue: Queue
    crawls: Crawls
    frontier: FrontierStore
    hosts: HostStore
    pages: PageStore
    bodies: BodyStore
    wake: Wake
    listeners: ControllerAddresses  # the controllers that this process knows of

    def janitor(self) -> Janitor:
        return Janitor(self.queue, self.clock, wary=True, bot_grace=self.settings.bots.grace)

    def clock_watch(self) -> "Chore | None":
        """Return the chore that checks the store's clock, for processes without a janitor. None for an embedded store:
        its clock follows the machine's uptime, and only a controller adjusts it to the wall clock."""
        return None if isinstance(self.database, SqliteDatabase) else self.queue.clock_watch(self.clock)

    @property
    def jobs(self) -> "JobAdmin":
        from shoal.queue.job_admin import JobAdmin
        from shoal.store.sql.job_admin import SqlJobAdmin

        return JobAdmin(self.database, self.queue, SqlJobAdmin(self.settings.queue.ageing))

    def announcer(self) -> "Chore":
        """Return the chore that announces to workers where this controller listens."""
        return AddressAnnouncer(self.database, SqlListeners(), self.settings.serve.listen)

    def pruner(self, holder: str) -> "Chore":
        """Return the chore that enforces retention, on one controller at a time."""
        from shoal.base.leader import LeaderOnly
        from shoal.events.retention import EventRetention
        from shoal.observe.hourly_stats import HourlyStatsRetention
        from shoal.page_jobs.retention import GroupRetention, ResultRetention
        from shoal.plan.retention import BoostRetention
        from shoal.queue.pruner import Pruner, job_retention
        from shoal.store.sql.events import SqlEvents
        from shoal.store.sql.groups import SqlGroupStore
        from shoal.store.sql.hourly_stats import SqlHourlyStats
        from shoal.store.sql.job_admin import SqlJobAdmin
        from shoal.store.sql.leader import SqlLeaderStore
        from shoal.store.sql.policies import SqlPolicies
        from shoal.store.sql.results import SqlResultStore

        shelves = job_retention(SqlJobAdmin(self.settings.queue.ageing), self.settings.queue)
        shelves.append(EventRetention(SqlEvents(), self.settings.events, self.signals))
        shelves.append(GroupRetention(self.settings.queue.keep_dead, SqlGroupStore()))
        shelves.append(HourlyStatsRetention(self.settings.queue.keep_hours, SqlHourlyStats()))
        shelves.append(ResultRetention(self.settings.pages.keep_results, SqlResultStore()))
        shelves.append(BoostRetention(self.settings.plan.keep_signals, SqlPolicies()))
        return LeaderOnly(Pruner(self.database, shelves), self.database, SqlLeaderStore(), holder)

    @property
    def archive(self) -> "FrontierAdminStore":
        from shoal.store.sql.frontier_admin import SqlFrontierAdmin

        return SqlFrontierAdmin(self.database.dialect, self.hosts, self.pages)

    @property
    def groups(self) -> "Groups":
        from shoal.page_jobs.groups import Groups
        from shoal.store.sql.groups import SqlGroupStore
        from shoal.store.sql.results import SqlResultStore

        return Groups(
            self.database,
            SqlGroupStore(),
            SqlResultStore(),
            self.queue,
            SqlOutbox(),
            rule_of(self.settings),
            self.signals,
            Proxies(self.settings.egress.proxies),
        )

    @property
    def analyses(self) -> "Analyses":
        from shoal.audit.analyses import Analyses
        from shoal.store.sql.analyses import SqlAnalysisStore

        return Analyses(self.database, SqlAnalysisStore(), self.queue, SqlOutbox(), self.signals)

    @property
    def ingest(self) -> "Ingest":
        from shoal.page_jobs.ingest import Ingest
        from shoal.store.sql.results import SqlResultStore

        return Ingest(self.database, self.queue, SqlResultStore(), SqlOutbox(), self.groups, self.signals)

    def hour_keeper(self) -> "Chore":
        """Return the chore that writes hourly statistics, subscribed to the signals of this process."""
        from shoal.observe.hourly_stats import HourlyStatsWriter
        from shoal.store.sql.hourly_stats import SqlHourlyStats

        return HourlyStatsWriter(self.database, SqlHourlyStats(), self.signals)

    def archivist(self) -> "FrontierAdmin":
        from shoal.crawl.frontier.admin import FrontierAdmin

        return FrontierAdmin(self.database, self.crawls, self.queue, self.archive, self.bodies)

    def crawl_dump(self) -> "CrawlDump":
        from shoal.crawl.dump.dump import CrawlDump

        return CrawlDump(self.database, self.crawls, self.frontier, self.archive, self.pages, self.archivist())

    def acts(self) -> "AuditLog":
        from shoal.access.audit_log import AuditLog
        from shoal.store.sql.tokens import SqlAuditLogStore

        return AuditLog(self.database, SqlAuditLogStore())

    def tokens(self) -> "Tokens":
        """Return the token service. Share one instance for verifying and revoking, so that revocation is immediate."""
        from shoal.access.tokens import Tokens
        from shoal.store.sql.tokens import SqlTokenStore

        return Tokens(self.database, SqlTokenStore(), self.acts(), self.clock, self.signals)

    def waiting_room(self) -> "LongPoll[PageTask]":
        from shoal.page_jobs.long_poll import LongPoll

        return LongPoll(self.wake, self.clock, self.settings.queue.poll_every)

    def bots(self, room: "LongPoll[PageTask] | None" = None) -> "Bots":
        """Return the bot service. `room` holds the long polls of bots that wait for jobs."""
        from shoal.hosts.rate_limiter import RateLimiter
        from shoal.page_jobs.bots import Bots
        from shoal.page_jobs.leasing import PageLeases

        settings, pace = self.settings, self.settings.pages.pace
        places = RateLimiter(self.hosts, pace.delay, ease_of(pace), settings.hosts.longest_slow_delay, at_once=True)
        slots = PageLeases(self.queue, self.groups.store, places)
        room = room or self.waiting_room()
        return Bots(self.database, self.queue, self.ingest, slots, room, settings.bots, self.clock, self.signals)

    def api(
        self,
        tokens: "Tokens | None" = None,
        live: "CrawlFeeds | None" = None,
        room: "LongPoll[PageTask] | None" = None,
    ) -> list[object]:
        """Return the groups of REST endpoints. On shutdown, the server must close `live` and `room` to end event
        streams and long polls."""
        from shoal.observe.hourly_stats import HourlyStatsReader
        from shoal.pages.pages import Pages
        from shoal.serve.analyses import AnalysisApi
        from shoal.serve.api import GROUPS
        from shoal.serve.bots import BotApi
        from shoal.serve.crawl_feed import CrawlFeeds
        from shoal.serve.crawls import CrawlApi
        from shoal.serve.docs import DocsApi
        from shoal.serve.groups import GroupApi
        from shoal.serve.jobs import JobApi, QuotaApi
        from shoal.serve.journal import JournalApi
        from shoal.serve.pages import PageApi
        from shoal.serve.policies import PolicyApi
        from shoal.serve.results import ResultApi
        from shoal.serve.stats import StatsApi
        from shoal.serve.tokens import AuditApi, TokenApi
        from shoal.serve.webhooks import WebhookApi
        from shoal.store.sql.hourly_stats import SqlHourlyStats

        return [
            BotApi(self.bots(room), self.clock, self.settings.bots.max_result_bytes),  # most requested: matched first
            CrawlApi(self.crawls, self.archivist(), self.once(), self.settings.crawl.max_url_length),
            PageApi(self.crawls, Pages(self.database, self.pages)),
            JournalApi(self.crawls, live or CrawlFeeds(self.crawls, self.clock)),
            GroupApi(self.groups, self.once()),
            JobApi(self.jobs),
            QuotaApi(self.jobs),
            StatsApi(self.crawls, self.jobs, HourlyStatsReader(self.database, SqlHourlyStats()), self.clock),
            AnalysisApi(self.analyses),
            PolicyApi(self.policies(), self.intake(), self.once(), self.settings.serve.max_import_bytes),
            ResultApi(self.policies(), self.history()),
            WebhookApi(self.webhooks(), self.once()),
            TokenApi(tokens or self.tokens()),
            AuditApi(self.acts()),
            DocsApi(GROUPS),
        ]

    def once(self) -> "Idempotency":
        from shoal.access.idempotency import Idempotency
        from shoal.store.sql.idempotency import SqlIdempotencyStore

        return Idempotency(self.database, SqlIdempotencyStore())

    def webhooks(self) -> "Webhooks":
        from shoal.events.webhooks import Webhooks
        from shoal.store.sql.events import SqlEvents, SqlWebhooks

        return Webhooks(self.database, SqlWebhooks(), SqlEvents(), lambda: rule_of(self.settings))

    def policies(self) -> "Policies":
        from shoal.crawl.lifecycle.policy_crawls import PolicyCrawls
        from shoal.plan.policies import Policies
        from shoal.store.sql.policies import SqlPolicies

        return Policies(
            self.database,
            SqlPolicies(),
            self.queue,
            PolicyCrawls(self.crawls),
            cache(lambda: rule_of(self.settings)),
            self.priority_rules(),
            Proxies(self.settings.egress.proxies),
        )

    def priority_rules(self) -> "tuple[PriorityRule, ...]":
        from shoal.plan.priority_rules import read_priority_rules

        return read_priority_rules(self.settings.plan.rules)

    def history(self) -> "History":
        from shoal.page_jobs.history import History
        from shoal.store.sql.results import SqlResultStore

        return History(self.database, SqlResultStore())

    def intake(self) -> "PolicyImporter":
        from shoal.plan.importer import PolicyImporter
        from shoal.store.sql.policies import SqlPolicies

        return PolicyImporter(self.database, SqlPolicies(), self.policies())

    def planners(self) -> "list[Chore]":
        """Return the chores that create the jobs and crawls of policies, and record their outcomes."""
        from shoal.crawl.lifecycle.policy_crawls import PolicyCrawls
        from shoal.plan.run_recorder import RunRecorder
        from shoal.plan.scheduler import Scheduler
        from shoal.plan.site_scheduler import SiteScheduler
        from shoal.store.sql.events import SqlEvents
        from shoal.store.sql.policies import SqlPolicies

        store, backlog, rules = SqlPolicies(), self.settings.plan.backlog, self.priority_rules()
        return [
            Scheduler(self.database, store, self.queue, self.jobs, self.signals, backlog, rules),
            SiteScheduler(self.database, store, PolicyCrawls(self.crawls), self.signals, rules),
            RunRecorder(self.database, SqlEvents(), store),
        ]

    def messengers(self, holder: str) -> "list[Chore]":
        """Return the chores that number events and deliver them to webhooks and the event file."""
        from shoal.base.leader import LeaderOnly
        from shoal.events.courier import Courier
        from shoal.events.event_file import EventFile
        from shoal.events.forwarder import Forwarder
        from shoal.store.sql.events import SqlEvents, SqlWebhooks
        from shoal.store.sql.leader import SqlLeaderStore

        events, webhooks, path = SqlEvents(), SqlWebhooks(), self.settings.events.file
        egress = partial(Egress, rule_of(self.settings), clock=self.clock)
        chores: list[Chore] = [
            Forwarder(self.database, events, webhooks, self.signals),
            Courier(self.database, webhooks, egress, self.clock, self.signals),
        ]
        if path is not None:
            file = EventFile(self.database, events, path)
            chores.append(LeaderOnly(file, self.database, SqlLeaderStore(), holder, lead=file.sink))
        return chores

    @property
    def privacy_warning(self) -> str | None:
        """A warning for the operator if every user of this machine may read files that can contain secrets."""
        files = []
        if isinstance(self.database, SqliteDatabase):
            files = [Path(f"{self.database.path}{ending}") for ending in ("", "-wal", "-shm")]
        place = self.settings.bodies.place
        if not place.startswith("s3://"):
            files.append(Path(place) if place else _beside_the_store(self.settings.database) / "bodies")
        found = readable_by_others([*files, self._log_folder])
        if not found:
            return None
        import shlex

        return (
            "The store, stored bodies and crawl logs may contain passwords and cookies, and every user of this"
            f" machine can read them: run `chmod go= {shlex.join(map(str, found))}`"
        )

    @property
    def _log_folder(self) -> Path:
        return self.settings.log.project_logs or _beside_the_store(self.settings.database) / "logs"

    def filer(self) -> "JournalFiles":
        from shoal.crawl.journal.files import JournalFiles
        from shoal.observe.project_logs import ProjectLogs

        log = self.settings.log
        files = ProjectLogs(self._log_folder, log.project_log_size, log.project_logs_kept)
        return JournalFiles(self.database, self.crawls.journal.store, files.append)

    async def check_store(self) -> None:
        """Raise unless the store can be read and written: a full store still answers queries, so a write is tried."""

        async def write(tx: Tx) -> None:
            await tx.execute("feel_pulse", name="ready")

        await self.database.run(write)

    async def check_room(self) -> None:
        """Raise unless the store accepts writes and has free space."""
        await self.check_store()
        await self.database.check_room()


def database_of(settings: DatabaseSettings, clock: Clock) -> "SqlDatabase":
    """Return the database driver for the store's URL."""
    url = settings.url
    if url.startswith("sqlite:///"):
        return SqliteDatabase(Path(url.removeprefix("sqlite:///")).expanduser(), clock)
    if url.startswith(("postgresql://", "postgres://")):
        from shoal.store.sql.postgres import PostgresDatabase

        return PostgresDatabase(settings, clock)
    raise BadConfig("DATABASE_URL", "is not a store URL that Shoal supports", "use sqlite:////path or postgresql://…")


def wake_of(database: "SqlDatabase", clock: Clock, signals: Signals) -> Wake:
    """Return the driver that carries wake-up hints between the processes on this store."""
    if isinstance(database, SqliteDatabase):
        from shoal.store.sql.sqlite_wake import SqliteWake

        return SqliteWake(database.path, clock, signals)
    from shoal.store.sql.postgres_wake import PostgresWake

    return PostgresWake(database.connect_apart, database.notify, clock, signals)


def bodies_of(settings: Settings, clock: Clock, signals: Signals) -> BodyStore:
    """Return the body store for the configured location; by default a folder next to a SQLite store."""
    place = settings.bodies.place
    if place.startswith("s3://"):
        from shoal.store.bodies.s3 import S3Bodies

        return S3Bodies(settings.bodies, clock, signals)
    if place:
        return FolderBodies(Path(place), clock)
    return FolderBodies(_beside_the_store(settings.database) / "bodies", clock)


def _beside_the_store(settings: DatabaseSettings) -> Path:
    """Return the folder for files that belong to a store: that of the SQLite file, else the data folder."""
    if not settings.url.startswith("sqlite"):
        return settings.data_dir
    return Path(settings.url.removeprefix("sqlite:///")).expanduser().absolute().parent


@asynccontextmanager
async def apart(app: App) -> AsyncIterator[Queue]:
    """Yield the queue on a separate connection, only for lease renewal: heartbeats must not wait behind other work of
    the process, and on a slow network they should take a single round trip."""
    settings = app.settings
    database: SqlDatabase = app.database
    if isinstance(database, SqliteDatabase):
        database = SqliteDatabase(database.path, app.clock)
    else:
        from shoal.store.sql.postgres import PostgresDatabase

        database = PostgresDatabase(settings.database.but(pool_size=1), single_statements=True)
    await database.open()
    try:
        heart = app.queue.on(database)
        await heart.extend([Fence(JobId("none"), 0)])  # prepares the statement before a lease depends on it
        yield heart
    finally:
        await database.close()


@asynccontextmanager
async def opened(
    settings: Settings, signals: Signals | None = None, *, upgrade: bool = False, existing: bool = False
) -> AsyncIterator[App]:
    """Open the store, yield the app, and close the store at the end. An embedded store is always upgraded, and created
    if it does not exist, unless `existing` is true."""
    clock = SystemClock()
    signals = signals or Signals()
    database = database_of(settings.database, clock)
    if isinstance(database, SqliteDatabase):
        _check_place(database.path, settings.database.data_dir, existing)
    await database.open(upgrade=upgrade or isinstance(database, SqliteDatabase))
    try:
        app = _wire(settings, clock, signals, database, wake_of(database, clock, signals))
        try:
            yield app
        except NotFound as error:
            if error.facts.get("kind") != "crawl":
                raise
            raise error.within(database.name, "list them with `shoal crawls ls`") from error
        finally:
            await app.wake.close()
            app.bodies.close()
    finally:
        await database.close()


def _check_place(store: Path, data_dir: Path, existing: bool) -> None:
    """Refuse to create a store at a mistyped path: only the default store is created together with its folder."""
    if store.parent == data_dir:
        return
    try:
        has_folder, is_there = store.parent.is_dir(), store.exists()
    except OSError:  # the driver reports this error
        return
    if not has_folder:
        fix = "create the folder, or use a file in another one"
        raise BadConfig("DATABASE_URL", f"names {store}, whose folder does not exist", fix)
    if existing and not is_there:
        raise NotFound("store", str(store), "choose the store of your crawls with --store or DATABASE_URL")


class _Later:
    """A listener for a kind of run that most processes never see: created when a job of that kind changes state."""

    def __init__(self, make: Callable[[], RunListener]) -> None:
        self._make = make

    async def lock(self, tx: Tx, run_id: str) -> None:
        await self._make().lock(tx, run_id)

    async def job_moved(self, tx: Tx, run_id: str, move: Move) -> None:
        await self._make().job_moved(tx, run_id, move)

    async def was_idle(self, tx: Tx, run_id: str, lost: LostJob) -> bool:
        return await self._make().was_idle(tx, run_id, lost)


class _LastWords:
    """The dead-letter listener of page jobs, which records an event: created when there is a dead letter."""

    async def buried(self, tx: Tx, moves: Sequence[Move]) -> None:
        from shoal.page_jobs.dead_letter_event import DeadLetterEvents
        from shoal.store.sql.results import SqlResultStore

        await DeadLetterEvents(SqlResultStore(), SqlOutbox()).buried(tx, moves)


def _wire(settings: Settings, clock: Clock, signals: Signals, database: "SqlDatabase", wake: Wake | None = None) -> App:
    wake = wake or QuietWake(signals)
    signals.subscribe(announcing(wake))
    pages = SqlPageStore()
    hosts = SqlHostStore()
    frontier = SqlFrontier(database.dialect, hosts)
    jobs = SqlJobStore(database.dialect, settings.queue.ageing)
    queue = Queue(database, jobs, jobs.lanes, settings.queue, signals)
    crawl_store = SqlCrawlStore()
    crawls = Crawls(
        database,
        crawl_store,
        frontier,
        queue,
        SqlOutbox(),
        rule_of(settings),
        signals,
        Journal(database, SqlJournalStore(), crawl_store, settings.crawl.journal_lines),
        settings.crawl,
        Proxies(settings.egress.proxies),
    )
    keepers: dict[str, RunListener] = {
        KIND: crawls,
        "page": _Later(lambda: app.groups),
        "analysis": _Later(lambda: app.analyses),
    }
    queue.register(keepers, {"page": _LastWords()})
    crawls.followed_by(lambda: app.analyses)
    bodies = bodies_of(settings, clock, signals)
    listeners = ControllerAddresses(database, SqlListeners())
    app = App(settings, clock, signals, database, queue, crawls, frontier, hosts, pages, bodies, wake, listeners)
    return app


def on_database(settings: Settings, database: "SqlDatabase") -> App:
    """Return the app on an open store; the caller closes the store."""
    return _wire(settings, SystemClock(), Signals(), database)


async def on_given(settings: Settings, given: "asyncpg.Pool | SqlDatabase") -> App:
    """Return the app on an open database of ours, or on the PostgreSQL database of a caller's pool; an empty database
    is initialised."""
    from shoal.store.sql.borrowed_pool import BorrowedPoolPostgres
    from shoal.store.sql.postgres import PostgresDatabase

    if isinstance(given, SqliteDatabase | PostgresDatabase):
        return on_database(settings, given)
    database = BorrowedPoolPostgres(settings.database, given)
    await database.open()
    return on_database(settings, database)


def ease_of(pace: SpeedProfile) -> float:
    """Return the seconds of delay per second that a slow host takes to respond."""
    return 2 / pace.connections if pace.delay else 0.0


def rule_of(
    settings: Settings, named: frozenset[Endpoint] = frozenset(), listeners: ControllerAddresses | None = None
) -> AddressRule:
    """Return the SSRF rules of crawls. They block controllers and workers with these settings, and the `listeners`,
    unless a person at this machine named the address, since something else may be listening there."""
    doors = [door for door in (settings.serve.listen, settings.work.listen) if door is not None]
    own = listening([door for door in doors if not _is_named(door, named)])
    allow = settings.egress.allow_networks
    if listeners is None:
        return AddressRule(allow=allow, named=named, own=own, is_local=is_local)

    def others() -> frozenset[tuple[IpAddress, int]]:
        known = listeners.known
        return frozenset(one for one in known if not _is_named(Address(str(one[0]), one[1]), named)) if named else known

    return AddressRule(allow=allow, named=named, own=own, is_local=is_local, others=others)


def _is_named(door: Address, named: frozenset[Endpoint]) -> bool:
    return any((host, door.port) in named for host in (door.host, f"[{door.host}]", "localhost"))
