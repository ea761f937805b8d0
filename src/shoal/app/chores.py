"""The chores of controllers and workers, and the interval of each chore."""

from collections.abc import Callable
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING

from shoal.access.tokens import TokenJanitor
from shoal.app.data_folders import journal_folder
from shoal.base.database.sqlite import SqliteDatabase
from shoal.base.service import Chore, LeaderOnly, Service
from shoal.hosts.controller_addresses import AddressAnnouncer
from shoal.observe.stats import EVERY as HOURLY_STATS_EVERY
from shoal.observe.stats import HourlyStatsRetention, HourlyStatsWriter
from shoal.queue.janitor import Janitor
from shoal.queue.presence import NOTE_EVERY, WorkerPresence

if TYPE_CHECKING:
    from shoal.app.app import App
    from shoal.crawl.journal import JournalFiles
    from shoal.events.courier import Courier
    from shoal.events.forwarder import Forwarder

FLEET_EVERY = timedelta(seconds=1)  # maximum age of the fleet view; maximum delay of commands from other controllers
TOKENS_EVERY = timedelta(seconds=10)  # maximum delay until the jobs of an expired token are returned
JOURNAL_FILES_EVERY = timedelta(seconds=1)  # maximum delay of a journal entry on its way to a file


class Chores:
    """The chores of one process, each built once. If several controllers share a store, one of them runs the pruner and
    writes the event file."""

    def __init__(self, app: "App") -> None:
        self._app = app

    def controller_services(self) -> list[Service]:
        """Return the services of a controller, except the address announcer, which the controller starts itself."""
        settings = self._app.settings
        deliveries: list[Chore] = [self.forwarder, self.courier, self._app.audit.status_publisher]
        if self.event_file is not None:
            deliveries.append(self.event_file)
        plan = self._app.plan
        schedulers: list[Chore] = [plan.scheduler, plan.site_scheduler, plan.run_recorder]
        fleet: list[Chore] = self._app.fleet.start() if self._app.controls else []
        return [
            self._service(self.janitor, settings.queue.sweep_every),
            self._service(TokenJanitor(self._app.access.tokens), TOKENS_EVERY),
            self._service(self.journal_files, JOURNAL_FILES_EVERY),
            self._service(self.pruner, settings.queue.prune_every),
            *(self._service(chore, settings.events.forward_every) for chore in deliveries),
            self._service(self.hourly_stats, HOURLY_STATS_EVERY),
            *(self._service(chore, settings.plan.schedule_every) for chore in schedulers),
            *(self._service(chore, FLEET_EVERY) for chore in fleet),
        ]

    def worker_services(self) -> list[Service]:
        """Return the services of a worker without a controller in its process."""
        services = [self._service(self.hourly_stats, HOURLY_STATS_EVERY)]
        # Only processes without a janitor need a clock watch. A worker on an embedded store needs none: the store's
        # clock follows the machine's uptime, and only a controller adjusts it to the wall clock.
        if not isinstance(self._app.database, SqliteDatabase):
            clock_watch = self._app.queue.recovery.clock_watch(self._app.clock)
            services.append(self._service(clock_watch, self._app.settings.queue.sweep_every))
        return services

    def worker_presence(self, is_leasing: Callable[[], bool]) -> Service:
        """Return the service that notes the presence of a worker in the store while a worker of this process leases
        jobs. The service begins immediately, because somebody may be waiting for a worker."""
        service = self._service(WorkerPresence(self._app.database, is_leasing), NOTE_EVERY)
        service.nudge()
        return service

    @cached_property
    def janitor(self) -> Janitor:
        app = self._app
        return Janitor(app.queue.recovery, app.clock, cautious=True, bot_grace=app.settings.bots.grace)

    @cached_property
    def pruner(self) -> Chore:
        """The chore that enforces retention."""
        from shoal.events.forwarder import EventRetention
        from shoal.page_jobs.store import GroupRetention, ResultRetention
        from shoal.plan.store import BoostRetention
        from shoal.queue.pruner import Pruner, RetentionRule, job_retention

        app, stores, settings = self._app, self._app.stores, self._app.settings
        rules: list[RetentionRule] = [
            *job_retention(stores.job_admin, settings.queue),
            EventRetention(settings.events, app.signals),
            GroupRetention(settings.queue.keep_dead),
            HourlyStatsRetention(settings.queue.keep_hours),
            ResultRetention(settings.pages.keep_results),
            BoostRetention(settings.plan.keep_signals),
        ]
        if settings.redis.url and settings.redis.lanes == "sql":
            rules.append(stores.abandoned_lanes)
        return LeaderOnly(Pruner(app.database, rules), app.database, app.process_name)

    @cached_property
    def journal_files(self) -> "JournalFiles":
        from shoal.crawl.journal import JournalFiles
        from shoal.observe.logs import ProjectLogs

        app, log = self._app, self._app.settings.log
        files = ProjectLogs(journal_folder(app.settings), log.project_log_size, log.project_logs_kept)
        return JournalFiles(app.database, files.append)

    @cached_property
    def forwarder(self) -> "Forwarder":
        """The chore that numbers events and hands them to the webhooks."""
        from shoal.events.forwarder import Forwarder

        return Forwarder(self._app.database, self._app.signals)

    @cached_property
    def courier(self) -> "Courier":
        """The chore that sends events to webhooks."""
        from shoal.egress import Egress
        from shoal.events.courier import Courier

        app = self._app
        egress = partial(Egress, app.address_rule, clock=app.clock)
        return Courier(app.database, egress, app.clock, app.signals)

    @cached_property
    def event_file(self) -> Chore | None:
        """The chore that appends events to a file; `None` if no file is set."""
        app, path = self._app, self._app.settings.events.file
        if path is None:
            return None
        from shoal.events.forwarder import EventFile

        file = EventFile(app.database, path)
        return LeaderOnly(file, app.database, app.process_name, lead=file.sink)

    @cached_property
    def hourly_stats(self) -> HourlyStatsWriter:
        """The chore that writes hourly statistics. It counts the signals of this process from the moment it is
        built."""
        return HourlyStatsWriter(self._app.database, self._app.signals)

    @cached_property
    def address_announcer(self) -> AddressAnnouncer:
        """The chore that announces to workers the addresses on which this controller listens."""
        app = self._app
        return AddressAnnouncer(app.database, app.settings.serve.listen)

    def _service(self, chore: Chore, every: timedelta) -> Service:
        return Service(chore, every, self._app.clock, self._app.signals)
