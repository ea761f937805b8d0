"""Decides whether a taken URL may be fetched: checks changed options, traps and robots.txt."""

from shoal.crawl.engine.page_reader import PageReader
from shoal.crawl.engine.sitemap_reader import SitemapReader
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, Settled, UrlKind, WalkerBatch
from shoal.crawl.scope import is_first_guess
from shoal.hosts.robots_cache import RobotsAnswer, RobotsRules
from shoal.web.fetch_pool import Admitted


class Admission:
    """Decides about the URLs of one walker before they are fetched.

    The frontier asks it, too (`shoal.crawl.store.AdmissionChecks`), so that no slot of a host is reserved for a URL
    that will not be fetched.
    """

    def __init__(self, robots: RobotsRules, pages: PageReader, sitemaps: SitemapReader, *, rejudges: bool) -> None:
        self.robots = robots
        self._pages = pages
        self._sitemaps = sitemaps
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
        return Fate.SKIPPED_ROBOTS if self.robots.denies(task.url) else None

    def knows(self, origin: str) -> bool:
        """Return whether the robots.txt of a host has been read."""
        return self.robots.knows(origin)

    def check(self, task: FrontierTask, batch: WalkerBatch) -> Admitted | Settled:
        """Return what to do with a task whose slot has come, or its outcome if it needs no fetch.

        Sitemaps that a robots.txt names are added to `batch`.
        """
        if task.awaited is not None:
            return self._pages.end_redirects(task, task.awaited)
        if task.kind is UrlKind.SITEMAP:
            return self._check_sitemap(task, batch)
        if task.chain is not None:
            return self._check_redirected(task)
        if self.rejudges and (fate := self._pages.judge_again(task)) is not Fate.OPEN:
            return Settled(task, fate)
        if self._pages.traps.holds(task.url):
            return Settled(task, Fate.QUARANTINED)
        match self.robots.judge(task.url):
            case RobotsAnswer.ALLOWED:
                return Admitted.NOW
            case RobotsAnswer.UNKNOWN:
                return Admitted.AFTER_ROBOTS
            case RobotsAnswer.DENIED:
                return Settled(task, Fate.SKIPPED_ROBOTS)
            case RobotsAnswer.UNREACHABLE:
                return self._pages.without_robots(task, self.robots.why(task.url))

    def _check_redirected(self, task: FrontierTask) -> Admitted | Settled:
        """Check the target of a redirect by the rules of its own host."""
        fate = self._pages.judge_target_again(task) if self.rejudges else Fate.OPEN
        if fate is Fate.OPEN:
            match self.robots.judge(task.at):
                case RobotsAnswer.ALLOWED:
                    return Admitted.NOW
                case RobotsAnswer.UNKNOWN:
                    return Admitted.AFTER_ROBOTS
                case RobotsAnswer.UNREACHABLE:
                    return self._pages.without_robots(task, self.robots.why(task.at))
                case RobotsAnswer.DENIED:
                    fate = Fate.SKIPPED_ROBOTS
        return self._pages.turned_away(task, fate)

    def _check_sitemap(self, task: FrontierTask, batch: WalkerBatch) -> Admitted | Settled:
        """Check a sitemap. It waits for the robots.txt of its host, which may name others.

        The rules can forbid only a sitemap whose address was guessed: one that somebody named is meant to be read.
        """
        answer = self.robots.judge(task.url)
        if answer is RobotsAnswer.UNKNOWN:
            return Admitted.AFTER_ROBOTS
        if answer is RobotsAnswer.UNREACHABLE:
            return self._sitemaps.without_robots(task, self.robots.why(task.url))
        if is_first_guess(task):
            self._sitemaps.add_named(self.robots.sitemaps(task.url), batch)
        if answer is RobotsAnswer.DENIED and self._sitemaps.is_guess(task):
            return Settled(task, Fate.SKIPPED_ROBOTS)
        return Admitted.NOW
