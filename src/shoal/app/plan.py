"""The objects of `shoal.plan`, without its schedulers (see `shoal.app.chores`)."""

from functools import cached_property
from typing import TYPE_CHECKING

from shoal.crawl.lifecycle.policy_crawls import PolicyCrawls
from shoal.plan.importer import PolicyImporter
from shoal.plan.policies import Policies
from shoal.plan.priority import PriorityRule
from shoal.plan.priority_rules import read_priority_rules

if TYPE_CHECKING:
    from shoal.app.app import App


class Plan:
    """Policies, their import, and the rules of their priority."""

    def __init__(self, app: "App") -> None:
        self._app = app

    @cached_property
    def policies(self) -> Policies:
        app = self._app
        return Policies(
            app.database,
            app.stores.policies,
            app.queue,
            self.policy_crawls,
            app.address_rule,
            self.priority_rules,
            app.proxies,
        )

    @cached_property
    def importer(self) -> PolicyImporter:
        return PolicyImporter(self._app.database, self._app.stores.policies, self.policies)

    @cached_property
    def policy_crawls(self) -> PolicyCrawls:
        return PolicyCrawls(self._app.crawls)

    @cached_property
    def priority_rules(self) -> tuple[PriorityRule, ...]:
        return read_priority_rules(self._app.settings.plan.rules)
