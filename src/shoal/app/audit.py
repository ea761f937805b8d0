"""The objects of `shoal.audit`."""

from functools import cached_property
from typing import TYPE_CHECKING

from shoal.app.drivers import artifacts_of
from shoal.audit.analyses import Analyses
from shoal.audit.artifacts import Artifacts, ArtifactStore
from shoal.audit.gates import Gates
from shoal.base.extras import require

if TYPE_CHECKING:
    from shoal.app.app import App
    from shoal.audit.commit_status import CommitStatusPublisher
    from shoal.audit.diff import CrawlDiffs


class Audit:
    """The analyses of crawls, and the gates that judge them."""

    def __init__(self, app: "App") -> None:
        self._app = app

    @property
    def analyses(self) -> Analyses:
        return self._app.analysis_listener.analyses

    @cached_property
    def gates(self) -> Gates:
        return Gates(self._app.database)

    @cached_property
    def files(self) -> Artifacts:
        return Artifacts(self.analyses, self.artifacts)

    @cached_property
    def artifacts(self) -> ArtifactStore:
        app = self._app
        return artifacts_of(app.settings, app.clock, app.signals)

    def close(self) -> None:
        """Close what was opened: connections to an object store."""
        if "artifacts" in vars(self):
            self.artifacts.close()

    @cached_property
    def status_publisher(self) -> "CommitStatusPublisher":
        """The chore that publishes commit statuses."""
        from shoal.app.address_rule import address_rule_of
        from shoal.audit.commit_status import CommitStatusPublisher, endpoints_of, forges_of
        from shoal.egress import Egress

        app = self._app
        forges = forges_of(app.settings.forges)
        rule = address_rule_of(app.settings, endpoints_of(forges.values()))
        return CommitStatusPublisher(
            app.database,
            forges,
            lambda: Egress(rule, clock=app.clock),
            app.clock,
            app.signals,
            app.settings.serve.public_url,
        )

    @cached_property
    def diffs(self) -> "CrawlDiffs":
        require("audit", "Comparing crawls")
        from shoal.audit.diff import CrawlDiffs

        return CrawlDiffs(self._app.database)
