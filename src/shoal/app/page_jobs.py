"""The objects of `shoal.page_jobs`. The runner of page jobs is built in `shoal.process.runners`."""

from functools import cached_property
from typing import TYPE_CHECKING

from shoal.page_jobs.groups import Groups
from shoal.page_jobs.ingest import Ingest

if TYPE_CHECKING:
    from shoal.app.app import App
    from shoal.page_jobs.bots import Bots, LongPoll
    from shoal.page_jobs.groups import History
    from shoal.page_jobs.scrapes import Scrapes


class PageJobs:
    """Groups of page jobs, their results, and the bots that work on them. Modules that only a controller needs are
    imported on first use."""

    def __init__(self, app: "App") -> None:
        self._app = app

    @cached_property
    def groups(self) -> Groups:
        app = self._app
        return Groups(app.database, app.queue, app.address_rule, app.signals, app.proxies, app.back_pressure)

    @cached_property
    def ingest(self) -> Ingest:
        app = self._app
        return Ingest(app.database, app.queue, app.signals, [app.policy_runs])

    @cached_property
    def scrapes(self) -> "Scrapes":
        from shoal.page_jobs.scrapes import JobEnds, Scrapes
        from shoal.serve.console.worker_watch import start_command

        app = self._app
        ends = JobEnds(app.database, app.queue, app.clock, app.signals)
        command = start_command(app.settings)
        return Scrapes(app.database, app.queue, app.job_admin, app.address_rule, ends, command)

    @cached_property
    def history(self) -> "History":
        from shoal.page_jobs.groups import History

        return History(self._app.database)

    @cached_property
    def bots(self) -> "Bots":
        from shoal.hosts.rate import HostDelay
        from shoal.hosts.rate_limiter import RateLimiter
        from shoal.page_jobs.bots import Bots
        from shoal.page_jobs.leasing import PageLeases

        app, settings = self._app, self._app.settings
        rate_limiter = RateLimiter(HostDelay.outside_crawls(settings), at_once=True)
        return Bots(
            app.queue,
            self.ingest,
            PageLeases(app.queue, rate_limiter),
            long_poll=self.long_poll,
            tokens=app.access.tokens,
            settings=settings.bots,
        )

    @cached_property
    def long_poll(self) -> "LongPoll":
        """The long polls of bots that wait for jobs. `RestApi.close` ends them."""
        from shoal.page_jobs.bots import LongPoll

        return LongPoll(self._app.wake, self._app.clock, self._app.settings.queue.poll_every.total_seconds())
