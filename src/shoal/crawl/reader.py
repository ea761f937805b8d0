"""What a fetched page means for its crawl: its record, its fate, and the URLs it found. Pure but for its memory."""

from itertools import compress
from typing import TYPE_CHECKING

from shoal.base.clock import Clock
from shoal.base.url import Canonicalizer, Refusal, Url
from shoal.crawl.fates import Fate
from shoal.crawl.frontier import NewUrl, Report, Settled, Task, key_of
from shoal.crawl.gate import NoRobots
from shoal.crawl.known import MOST, KnownUrls
from shoal.crawl.retries import Retries
from shoal.crawl.scope import Scope
from shoal.crawl.traps import TrapWatch
from shoal.extract.page import Facts
from shoal.fetch.fetch import Fetched
from shoal.pages.links import LinkFlag, join, pack
from shoal.pages.page import Page

if TYPE_CHECKING:  # few crawls ask for more than facts
    from shoal.extract.further import Further

ROBOTS_RETRY = 5_000_000  # microseconds

REFUSED: dict[Refusal, Fate] = {
    Refusal.INVALID_URL: Fate.SKIPPED_INVALID_URL,
    Refusal.SCHEME_NOT_ALLOWED: Fate.SKIPPED_SCHEME,
    Refusal.URL_TOO_LONG: Fate.SKIPPED_URL_TOO_LONG,
    Refusal.HOST_TOO_LONG: Fate.SKIPPED_INVALID_URL,
    Refusal.CREDENTIALS_IN_URL: Fate.SKIPPED_CREDENTIALS,
    Refusal.CONTROL_CHARACTERS: Fate.SKIPPED_CONTROL_CHARACTERS,
    Refusal.BACKSLASH_IN_URL: Fate.SKIPPED_BACKSLASH,
}


class PageReader:
    """Reads the pages of one walker."""

    def __init__(
        self,
        key_seed: int,
        scope: Scope,
        urls: Canonicalizer,
        clock: Clock,
        *,
        retries: Retries,
    ) -> None:
        self._key_seed = key_seed
        self._scope = scope
        self._urls = urls
        self._clock = clock
        self._retries = retries
        self._known = KnownUrls(key_seed)
        self._too_deep: set[Url] = set()  # known, but to be looked at again when a shorter way leads there
        self.traps = TrapWatch()

    def read(self, task: Task, fetched: Fetched, report: Report) -> Settled:
        """The task settled; what the page links to is added to the report."""
        retry_in = self._retries.again_in(task.attempts, fetched)
        if retry_in is not None:
            return Settled(task, Fate.OPEN, retry_in=retry_in)
        page = self._page(task, fetched)
        if fetched.further is not None:
            further_to_page(fetched.further, page)
        if fetched.facts is not None:
            self._links(task, fetched, fetched.facts, page, report)
            self._notice(task, fetched.facts, report)
        return Settled(task, Fate.FETCHED if fetched.status is not None else Fate.FAILED, page)

    def forget(self) -> None:
        """What was found may not have reached the store: ask it again."""
        self._known = KnownUrls(self._key_seed)
        self._too_deep.clear()

    def killer(self, task: Task) -> Settled:
        """A URL that was alone in flight each time the worker died: it fails, not the crawl."""
        page = self._bare(task)
        page.error_code = "worker_killed"
        page.error_message = "The worker died each time it fetched this page alone."
        return Settled(task, Fate.FAILED, page)

    def unexpected(self, task: Task, error: Exception) -> Settled:
        """Reading the page raised what nobody foresaw: it fails, and says so."""
        page = self._bare(task)
        page.error_code = "unexpected"
        page.error_message = f"{type(error).__name__}: {error}"[:500]
        return Settled(task, Fate.FAILED, page)

    def without_robots(self, task: Task, why: NoRobots) -> Settled:
        """The host's robots.txt cannot be had, so its pages may not be: try again later, then give up."""
        if task.attempts + 1 < self._retries.attempts:
            return Settled(task, Fate.OPEN, retry_in=ROBOTS_RETRY)
        page = self._bare(task)
        page.error_code = why.code
        page.error_message = why.message
        return Settled(task, Fate.FAILED, page)

    def _bare(self, task: Task) -> Page:
        return Page(
            url=task.url,
            depth=task.depth,
            parent=task.parent,
            fetched_at=self._clock.micros(),
            attempt=task.attempts + 1,
        )

    def _page(self, task: Task, fetched: Fetched) -> Page:
        page = self._bare(task)
        page.final_url = fetched.final_url
        page.status = fetched.status
        page.content_type = fetched.content_type
        page.bytes = fetched.bytes
        page.etag = fetched.etag
        page.last_modified = fetched.last_modified
        page.duration_ms = round(fetched.seconds * 1000, 3)
        page.redirects = [{"url": hop.url, "status": hop.status} for hop in fetched.redirects]
        if fetched.failure is not None:
            page.error_code = fetched.failure.code
            page.error_message = fetched.failure.message
        return page

    def _links(self, task: Task, fetched: Fetched, facts: Facts, page: Page, report: Report) -> None:
        final = task.url if fetched.final_url == task.url else self._urls.canonical(fetched.final_url)
        if isinstance(final, Refusal):
            return
        if task.depth == 0 and fetched.redirects:
            self._scope.widen(final)
        facts_to_page(facts, page)
        base = self._urls.base(final, facts.base)
        followed = dict.fromkeys([url for url in self._urls.resolve(base, facts.links) if isinstance(url, str)])
        insides = self._scope.insides(followed)
        inside = list(compress(followed, insides))
        page.links_internal = len(inside)
        page.links_external = len(followed) - len(inside)
        # What an outsider links to is neither crawled nor said to be known.
        ours = self._scope.inside(final)
        keys = self._find(followed, inside, task, report) if ours else map(self._known.packed, followed)
        page.links = pack(keys, bytes(insides))  # true is the flag INTERNAL
        if facts.nofollow:
            page.links = join(page.links, self._not_followed(base, facts.nofollow, followed))

    def _not_followed(self, base: Url, hrefs: list[str], followed: dict[Url, None]) -> bytes:
        """The blob of links that the page asked not to follow, but for those that it also has without asking."""
        urls = dict.fromkeys([url for url in self._urls.resolve(base, hrefs) if isinstance(url, str)])
        others = [url for url in urls if url not in followed]
        flags = [LinkFlag.NOFOLLOW | (LinkFlag.INTERNAL if self._scope.inside(url) else 0) for url in others]
        return pack(map(self._known.packed, others), bytes(flags))

    def _remember_depth(self, url: Url, fate: Fate) -> None:
        if fate is Fate.SKIPPED_DEPTH:
            if len(self._too_deep) >= MOST:
                self.forget()
            self._too_deep.add(url)

    def _notice(self, task: Task, facts: Facts, report: Report) -> None:
        if facts.text_hash is not None:
            trap = self.traps.notice(task.url, facts.text_hash)
            if trap is not None:
                report.traps[trap] = task.url

    def _find(self, urls: dict[Url, None], inside: list[Url], task: Task, report: Report) -> list[bytes]:
        """Report what is new; the packed keys of all."""
        depth = task.depth + 1
        keys, unknown = self._known.add(urls)
        if self._too_deep and self._scope.deep_enough(depth):  # found again, nearer to a seed
            unknown |= {url: key_of(url, self._key_seed) for url in urls.keys() & self._too_deep}
        if unknown:
            for url in inside:  # in the page's order
                if url in unknown:
                    self._find_inside(url, unknown.pop(url), depth, task.key, report)
            report.skipped += [(*key, Fate.SKIPPED_SCOPE) for key in unknown.values()]
        return keys

    def _find_inside(self, url: Url, known_by: tuple[int, int], depth: int, parent: int, report: Report) -> None:
        fate = self._scope.judge_inside(url, depth)
        key, chk = known_by
        if fate is not Fate.OPEN:
            self._remember_depth(url, fate)
            report.skipped.append((key, chk, fate))
            return
        self._too_deep.discard(url)
        if self.traps.holds(url):
            fate = Fate.QUARANTINED
        report.found.append(NewUrl(key, chk, url, depth, fate, parent))


def facts_to_page(facts: Facts, page: Page) -> None:
    page.encoding = facts.encoding
    page.title = facts.title
    page.description = facts.description
    page.canonical = facts.canonical
    page.robots = facts.robots
    page.lang = facts.lang
    page.h1 = facts.h1
    page.word_count = facts.word_count
    page.content_hash = facts.content_hash


def further_to_page(further: "Further", page: Page) -> None:
    """What was wrong with the data is the page's error, if it has no other."""
    page.data = further.data
    page.detail = further.detail
    if page.error_code is None and further.error_code is not None:
        page.error_code = further.error_code
        page.error_message = further.error_message
