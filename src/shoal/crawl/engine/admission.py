"""Decides whether a taken URL may be fetched: checks holds of its host, changed options, traps and robots.txt."""

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from shoal.base.url import Url
from shoal.crawl.engine.page_reader import PageReader
from shoal.crawl.engine.robots_check import RobotsAnswer, RobotsUnavailable
from shoal.crawl.engine.sitemap_reader import SitemapReader
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, Settled, UrlKind, WalkerBatch
from shoal.crawl.scope import is_first_guess
from shoal.hosts.throttle import ThrottleTracker


class RobotsRules(Protocol):
    """The robots.txt rules of the hosts of one walker."""

    def judge(self, url: Url) -> RobotsAnswer: ...

    def denies(self, url: Url) -> bool: ...

    def knows(self, host_origin: str) -> bool: ...

    def sitemaps(self, url: Url) -> list[str]: ...

    def ask(self, url: Url, then: Callable[[], None]) -> None: ...

    def why(self, url: Url) -> RobotsUnavailable: ...

    def close(self) -> None: ...


class Admitted(Enum):
    """The moment from which an admitted URL may be fetched."""

    NOW = "now"  # only for its place in the fetch window
    AFTER_ROBOTS = "after_robots"  # the robots.txt of its host, which is not known yet


class Admission:
    """Decides about the URLs of one walker before they are fetched.

    The frontier asks it, too (`shoal.crawl.store.AdmissionChecks`), so that no slot of a host is reserved for a URL
    that will not be fetched.
    """

    def __init__(
        self,
        robots: RobotsRules,
        pages: PageReader,
        sitemaps: SitemapReader,
        throttle: ThrottleTracker,
        *,
        rejudges: bool,
    ) -> None:
        self._robots = robots
        self._pages = pages
        self._sitemaps = sitemaps
        self._throttle = throttle
        self.rejudges = rejudges  # options were changed, so URLs that wait may no longer belong to the crawl

    @property
    def is_out_of_reach(self) -> bool:
        """Return whether the host of the only seed cannot be reached, so waiting for a slot there is useless."""
        return self._pages.is_out_of_reach

    def skip_fate(self, task: FrontierTask) -> Fate | None:
        """Return the fate of a URL that is known not to be fetched; None if it may be."""
        if task.chain is not None or task.kind is UrlKind.SITEMAP:
            return None
        if self.rejudges and (fate := self._pages.judge_again(task)) is not Fate.OPEN:
            return fate
        if self._pages.traps.holds(task.url):
            return Fate.QUARANTINED
        return Fate.SKIPPED_ROBOTS if self._robots.denies(task.url) else None

    def knows(self, origin: str) -> bool:
        """Return whether the robots.txt of a host has been read."""
        return self._robots.knows(origin)

    def ask_robots(self, url: Url, then: Callable[[], None]) -> None:
        """Get the robots.txt of the URL's host, and call `then` when it is known or cannot be fetched."""
        self._robots.ask(url, then)

    def close(self) -> None:
        """Stop asking for robots.txt files."""
        self._robots.close()

    def check(self, task: FrontierTask, batch: WalkerBatch) -> Admitted | Settled:
        """Return what to do with a task whose slot has come, or its outcome if it needs no fetch.

        Sitemaps that a robots.txt names are added to `batch`.
        """
        if self._throttle.counts_successes and self._throttle.holds(task.host):
            return Settled(task, Fate.OPEN, untried=True)
        if task.kind is UrlKind.SITEMAP:
            return self._check_sitemap(task, batch)
        if task.chain is not None:
            return self._check_redirected(task)
        if self.rejudges and (fate := self._pages.judge_again(task)) is not Fate.OPEN:
            return Settled(task, fate)
        if self._pages.traps.holds(task.url):
            return Settled(task, Fate.QUARANTINED)
        match self._robots.judge(task.url):
            case RobotsAnswer.ALLOWED:
                return Admitted.NOW
            case RobotsAnswer.UNKNOWN:
                return Admitted.AFTER_ROBOTS
            case RobotsAnswer.DENIED:
                return Settled(task, Fate.SKIPPED_ROBOTS)
            case RobotsAnswer.UNREACHABLE:
                return self._pages.without_robots(task, self._robots.why(task.url))

    def _check_redirected(self, task: FrontierTask) -> Admitted | Settled:
        """Check the target of a redirect by the rules of its own host."""
        fate = self._pages.judge_target_again(task) if self.rejudges else Fate.OPEN
        if fate is Fate.OPEN:
            match self._robots.judge(task.at):
                case RobotsAnswer.ALLOWED:
                    return Admitted.NOW
                case RobotsAnswer.UNKNOWN:
                    return Admitted.AFTER_ROBOTS
                case RobotsAnswer.UNREACHABLE:
                    return self._pages.without_robots(task, self._robots.why(task.at))
                case RobotsAnswer.DENIED:
                    fate = Fate.SKIPPED_ROBOTS
        return self._pages.turned_away(task, fate)

    def _check_sitemap(self, task: FrontierTask, batch: WalkerBatch) -> Admitted | Settled:
        """Check a sitemap. It waits for the robots.txt of its host, which may name others.

        The rules can forbid only a sitemap whose address was guessed: one that somebody named is meant to be read.
        """
        answer = self._robots.judge(task.url)
        if answer is RobotsAnswer.UNKNOWN:
            return Admitted.AFTER_ROBOTS
        if answer is RobotsAnswer.UNREACHABLE:
            return self._sitemaps.without_robots(task, self._robots.why(task.url))
        if is_first_guess(task):
            self._sitemaps.add_named(self._robots.sitemaps(task.url), batch)
        if answer is RobotsAnswer.DENIED and self._sitemaps.is_guess(task):
            return Settled(task, Fate.SKIPPED_ROBOTS)
        return Admitted.NOW
