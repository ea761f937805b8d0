"""The objects of `shoal.plan`."""

from functools import cached_property
from typing import TYPE_CHECKING

from shoal.plan.importer import PolicyImporter
from shoal.plan.policies import Policies
from shoal.plan.priority import PriorityRule, read_priority_rules

if TYPE_CHECKING:
    from shoal.app.app import App
    from shoal.plan.run_recorder import RunRecorder
    from shoal.plan.scheduler import Scheduler, SiteScheduler


class Plan:
    """Policies: their import, their priority rules, and their schedulers."""

    def __init__(self, app: "App") -> None:
        self._app = app

    @cached_property
    def policies(self) -> Policies:
        app = self._app
        return Policies(app.database, app.queue, app.crawls, app.address_rule, self.priority_rules, app.proxies)

    @cached_property
    def importer(self) -> PolicyImporter:
        return PolicyImporter(self._app.database, self.policies)

    @cached_property
    def priority_rules(self) -> tuple[PriorityRule, ...]:
        return read_priority_rules(self._app.settings.plan.rules)

    @cached_property
    def scheduler(self) -> "Scheduler":
        """The chore that creates the jobs of page policies."""
        from shoal.plan.scheduler import Scheduler

        app, rules = self._app, self.priority_rules
        backlog = app.settings.plan.backlog
        return Scheduler(app.queue, app.job_admin, backlog, rules=rules, back_pressure=app.back_pressure)

    @cached_property
    def site_scheduler(self) -> "SiteScheduler":
        """The chore that creates the crawls of site policies."""
        from shoal.plan.scheduler import SiteScheduler

        app = self._app
        return SiteScheduler(app.database, app.crawls, app.signals, self.priority_rules, app.back_pressure)

    @cached_property
    def run_recorder(self) -> "RunRecorder":
        """The chore that records the policy runs that ended before the store was upgraded."""
        from shoal.plan.run_recorder import RunRecorder

        return RunRecorder(self._app.database)
