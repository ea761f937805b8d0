"""The entries of a crawl's journal, and the reporter that selects the entries of a walker."""

import shlex
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from shoal.base.clock import Clock
from shoal.base.text import Sentence, joined, message, plural
from shoal.crawl.crawl import Counts, Crawl
from shoal.crawl.frontier.fates import SKIPS
from shoal.crawl.frontier.traps import is_area
from shoal.crawl.frontier.values import Turn, WalkerBatch
from shoal.crawl.lifecycle.failed_urls import MAX_LISTED, FailedSeed
from shoal.crawl.states import DRAINED, DRAINED_PARTLY, LABELS, RELEASABLE, CrawlMove, CrawlState, reason_text
from shoal.hosts.throttle import HostUpdate
from shoal.pages.page import ResponseClass, in_words
from shoal.queue.states import GrantEnd, JobState, Move


class JournalLevel(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class JournalEntry(Struct, frozen=True):
    """A journal entry: the name of the event for programs, and a message for people."""

    event: str
    message: str
    level: JournalLevel = JournalLevel.INFO
    facts: dict[str, Any] = field(default_factory=dict)


ALL_CRAWLED = "all URLs were crawled"  # older message of a drained crawl, even with URLs in quarantine
MOST_DEPTHS = 50  # maximum number of depths reported at the same time; each gets one entry
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "crawl_forced": (message("Stopping by force: workers that have not stopped after {grace_seconds} s are killed"),),
    "depth_finished": (message("Depth {depth} finished"),),
    "frontier_rebuilt": (
        message("Redis had lost the frontier; it was rebuilt, and {count} page will be fetched again for their links"),
        message("Redis had lost the frontier; it was rebuilt, and {count} pages will be fetched again for their links"),
    ),
    "host_held": (message("{host} answered {status}: no requests for {seconds} s"),),
    "limit_reached": (message("{reason}; other workers finish what they are fetching"),),
    "more_seeds_failed": (message("More seeds failed; they are counted when the crawl has ended"),),
    "pattern_quarantined": (
        message("Quarantined {pattern} as a crawler trap: its pages repeat each other, or lead to ever more pages"),
    ),
    "area_quarantined": (message("Quarantined {pattern} as a crawler trap: its pages only lead to ever more pages"),),
    "pattern_released": (
        message("{pattern} is released from quarantine: {count} URL queued again"),
        message("{pattern} is released from quarantine: {count} URLs queued again"),
    ),
    "urls_found": (message("Found {count} URL"), message("Found {count} URLs")),
    "urls_reopened": (
        message("{count} failed URL will be retried"),
        message("{count} failed URLs will be retried"),
    ),
    "walker_began": (message("A worker joined"),),
    "walker_given_up": (message("Failed permanently: {error}"),),
    "walker_handed_back": (message("Returned to the queue, waiting for a worker ({reason})"),),
    "walker_retried": (message("Failed, retrying in {retry_in_seconds} s: {error}"),),
    "worker_lost": (message("Worker lost, waiting for another worker: {error}"),),
}
"""The message of each event, with placeholders for the entry's facts. The second text is used if `{count}`, the number
of URLs or pages, is a plural."""
OPTIONS: Final[Mapping[str, str]] = {
    "concurrency": message("concurrency"),
    "delay_seconds": message("delay seconds"),
    "depth": message("depth"),
    "exclude": message("exclude"),
    "include": message("include"),
    "max_bytes": message("max bytes"),
    "max_pages": message("max pages"),
    "max_pages_per_host": message("max pages per host"),
    "max_seconds": message("max seconds"),
    "priority": message("priority"),
    "speed": message("speed"),
}
"""The options that `crawl_changed` names."""


def sentence_of(entry: JournalEntry) -> Sentence:
    """Return the message of an entry as a sentence. It is built from the entry's facts. Where the facts are not
    sufficient, the stored message is used: it is one of a few known texts."""
    facts = entry.facts
    if entry.event in WORDS:
        return _worded(entry.event, facts)
    if entry.event == "seed_failed":  # the error is only in the message, which is English
        return _failed_seed(facts["url"], facts["cause"])
    if entry.event == "crawl_changed":
        return _changed(facts["changes"])
    state = CrawlState(entry.event.removeprefix("crawl_"))
    ended = _ended(state, facts) if "pages" in facts else Sentence(entry.message.partition(" (")[0])
    return _with_reason(ended, facts.get("reason"))


def _worded(event: str, facts: Mapping[str, Any]) -> Sentence:
    one, *other = WORDS[event]
    values = {**facts}
    if "reason" in facts:
        reason = Sentence(reason_text(facts["reason"]))
        values |= {"reason": reason, "error": facts.get("error") or reason}
    values |= {name: f"{facts[name]:{form}}" for name, form in _DURATIONS.items() if name in facts}
    if not other:
        return Sentence(one, values)
    return Sentence(one, values | {"count": facts["urls" if "urls" in facts else "pages"]}, other[0])


_DURATIONS = {"seconds": ".1f", "retry_in_seconds": "g", "grace_seconds": "g"}


def _entry(event: str, level: JournalLevel = JournalLevel.INFO, **facts: Any) -> JournalEntry:
    return JournalEntry(event, str(_worded(event, facts)), level, facts)


def submitted(crawl: Crawl, *, local: bool) -> JournalEntry:
    waits = crawl.state is CrawlState.QUEUED
    waiting = message("Crawled by the process that created it") if local else message("Waiting for a worker")
    words = waiting if waits else message("Stored, not started yet")
    return JournalEntry(f"crawl_{crawl.state}", words, facts={"seeds": len(crawl.config.seeds)})


def moved(crawl: Crawl, move: CrawlMove, counts: Counts | None) -> JournalEntry:
    """Return the entry for a change of the crawl's state. The entry for the end of the crawl includes the counts."""
    facts: dict[str, Any] = {} if move.reason is None else {"reason": move.reason}
    said = Sentence(_moved(crawl, move))
    if counts is not None:
        facts |= {"pages": counts.pages, "errors": counts.errors, "responses": counts.responses}
        facts |= {"not_modified": counts.not_modified, "bytes": counts.bytes, "queued": counts.queued}
        facts |= {"skipped": counts.skipped}
        said = _ended(move.to, facts)
    words, usual = str(_with_reason(said, move.reason)), JournalLevel.INFO
    if counts is not None and counts.held:
        words += f". {left_in_quarantine(crawl.id, move.to, counts.held)}"
        usual = JournalLevel.WARNING
    return JournalEntry(f"crawl_{move.to}", words, _LEVELS.get(move.to, usual), facts)


def _ended(state: CrawlState, facts: Mapping[str, Any]) -> Sentence:
    counts = _counts(facts["pages"], facts["errors"], facts.get("responses"), facts.get("not_modified", 0))
    if "skipped" in facts:  # entries from before quarantined URLs were counted separately lack this field
        skipped = Sentence(message("{count} skipped"), {"count": sum(facts["skipped"].values())})
        counts = joined([counts, skipped], ", ")
    return Sentence(message("{state}: {counts}"), {"state": Sentence(LABELS[state]), "counts": counts})


def _with_reason(said: Sentence, reason: str | None) -> Sentence:
    return joined([said, Sentence("({reason})", {"reason": Sentence(reason_text(reason))})]) if reason else said


def claims_all_urls(entry: JournalEntry) -> bool:
    """Return whether an entry is older than the reason `drained_partly`. Such an entry claims that all URLs were
    crawled, even if some were left out."""
    return entry.event == "crawl_completed" and entry.facts.get("reason") == DRAINED and "skipped" not in entry.facts


def reworded(entry: JournalEntry, crawl: Crawl, counts: Counts) -> JournalEntry:
    """Return an entry with today's wording."""
    if not claims_all_urls(entry):
        return entry
    if crawl.state_reason != DRAINED or not counts.held:
        return replace(entry, message=entry.message.replace(ALL_CRAWLED, reason_text(DRAINED)))
    words = entry.message.replace(ALL_CRAWLED, reason_text(DRAINED_PARTLY))
    words += f". {left_in_quarantine(crawl.id, CrawlState.COMPLETED, counts.held)}"
    facts = entry.facts | {"reason": DRAINED_PARTLY, "skipped": counts.skipped}
    return JournalEntry(entry.event, words, JournalLevel.WARNING, facts)


def shoal_command(*words: str) -> str:
    """Return a command line for advice to readers. It has no store or server options, because these are not known
    here."""
    return shlex.join(["shoal", *words])


def left_in_quarantine(crawl_id: str, state: CrawlState, urls: int, command: Callable[..., str] = shoal_command) -> str:
    """Describe how many URLs a crawl left out as a trap, and how to crawl them. `command` returns a command line."""
    were = "was" if urls == 1 else "were"
    left = (
        f"{plural(urls, 'URL')} {were} not crawled, but quarantined as a crawler trap. "
        f"See the patterns with `{command('crawls', 'show', crawl_id)}`"
    )
    if state in RELEASABLE:
        return f"{left}, and release one with `{command('crawls', 'release', crawl_id, 'PATTERN')}`."
    return f"{left}. A {state} crawl cannot release them, but a new crawl may crawl them."


def counts_text(counts: Counts) -> str:
    """Describe the numbers of pages and errors. Unless all responses were 2xx, add the numbers by response class."""
    return str(_counts(counts.pages, counts.errors, counts.responses, counts.not_modified))


def _counts(pages: int, errors: int, responses: Mapping[ResponseClass, int] | None, not_modified: int) -> Sentence:
    shown = Sentence(message("{count} page"), {"count": pages}, message("{count} pages"))
    answered: dict[ResponseClass, int] = {**(responses or {}), "none": 0}  # without a response: an error, not a page
    if responses is not None and responses["2xx"] != sum(answered.values()):
        classes = in_words(answered, not_modified)
        shown = joined([shown, Sentence("({classes})", {"classes": classes})])
    return joined([shown, Sentence(message("{count} error"), {"count": errors}, message("{count} errors"))], ", ")


_LEVELS = {CrawlState.FAILED: JournalLevel.ERROR}


def _moved(crawl: Crawl, move: CrawlMove) -> str:
    match move.to:
        case CrawlState.QUEUED:
            resumed = crawl.state is CrawlState.PAUSED
            return message("Resumed, waiting for a worker") if resumed else message("Queued, waiting for a worker")
        case CrawlState.RUNNING:
            return message("Started") if crawl.started_at is None else message("Continuing")
        case _:
            return LABELS[move.to]


def forced(grace: timedelta) -> JournalEntry:
    return _entry("crawl_forced", JournalLevel.WARNING, grace_seconds=grace.total_seconds())


def changed(changes: dict[str, Any]) -> JournalEntry:
    return JournalEntry("crawl_changed", str(_changed(changes)), facts={"changes": changes})


def _changed(changes: Mapping[str, Any]) -> Sentence:
    named = [
        Sentence("{name} {value}", {"name": Sentence(OPTIONS[name]), "value": _option(value)})
        for name, value in changes.items()
    ]
    return Sentence(message("Changed: {changes}"), {"changes": joined(named, "; ")})


def _option(value: Any) -> Any:
    if value in (None, []):
        return Sentence(message("none"))
    return ", ".join(value) if isinstance(value, list) else f"{value:g}" if isinstance(value, float) else value


def reopened(count: int) -> JournalEntry:
    return _entry("urls_reopened", urls=count)


def frontier_rebuilt(pages: int) -> JournalEntry:
    """Return the entry for a frontier that its store had lost."""
    return _entry("frontier_rebuilt", JournalLevel.WARNING, pages=pages)


def limit_reached(move: Move) -> JournalEntry:
    """Return the entry for a walker that found a budget spent while other walkers are still running."""
    entry = _entry("limit_reached", job_id=move.job_id, reason=move.reason)
    return replace(entry, message=entry.message.capitalize())


def walker_moved(move: Move) -> JournalEntry | None:
    """Return the entry for the outcome of one of the crawl's jobs; None if the outcome is not worth an entry."""
    facts: dict[str, Any] = {"job_id": move.job_id, "reason": move.reason}
    if move.grant_end is GrantEnd.DONE:
        return None
    if move.error is not None:
        facts["error"] = move.error
    if move.to is not JobState.PENDING:
        return _entry("walker_given_up", JournalLevel.ERROR, **facts)
    match move.grant_end:
        case GrantEnd.RELEASED:
            return _entry("walker_handed_back", **facts)
        case GrantEnd.RETRIED:
            facts["retry_in_seconds"] = round(move.wait.total_seconds(), 1)
            return _entry("walker_retried", JournalLevel.WARNING, **facts)
        case _:
            return _entry("worker_lost", JournalLevel.WARNING, **facts)


def taken_up(job_id: str) -> JournalEntry:
    return _entry("walker_began", job_id=job_id)


def found(urls: int) -> JournalEntry:
    return _entry("urls_found", urls=urls)


def depths_finished(before: int, upto: int) -> list[JournalEntry]:
    """Return the entries for the depths that are now settled and were not reported before."""
    return [_entry("depth_finished", depth=depth) for depth in range(max(before + 1, upto + 1 - MOST_DEPTHS), upto + 1)]


def seed_failed(seed: FailedSeed) -> JournalEntry:
    facts = {"url": seed.url, "cause": str(seed.status or seed.error_code)}
    return JournalEntry("seed_failed", f"Seed {seed.words()}", JournalLevel.WARNING, facts)


def _failed_seed(url: str, cause: str) -> Sentence:
    if cause.isdecimal():
        return Sentence(message("Seed {url} answered {cause}"), {"url": url, "cause": cause})
    why = SKIPS.get(cause) or reason_text(cause)
    return Sentence(message("Seed {url} failed ({cause})"), {"url": url, "cause": Sentence(why)})


def more_seeds_failed() -> JournalEntry:
    return _entry("more_seeds_failed", JournalLevel.WARNING)


def held(update: HostUpdate, seconds: float) -> JournalEntry:
    return _entry("host_held", JournalLevel.WARNING, host=update.origin, status=update.answered, seconds=seconds)


def released(pattern: str, urls: int) -> JournalEntry:
    return _entry("pattern_released", pattern=pattern, urls=urls)


def trapped(pattern: str, sample: str) -> JournalEntry:
    kind = "area_quarantined" if is_area(pattern) else "pattern_quarantined"
    return _entry(kind, JournalLevel.WARNING, pattern=pattern, url=sample)


EVERY_SECONDS = 60.0  # between two entries on the same subject
FIRST_LOOK_SECONDS = 1.0  # until the next check whether a depth is finished; doubled each time
MOST_HOSTS = 1000  # hosts whose last report is remembered


class JournalUpdate(Struct, frozen=True):
    """The journal additions of one commit: the entries, whether to report the number of URLs found, and a depth that is
    reported if all URLs up to that depth are settled."""

    entries: list[JournalEntry] = field(default_factory=list)
    found: bool = False
    depth: int | None = None


class JournalReporter:
    """Decides which events of one walker's commits are worth a journal entry."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[JournalEntry] = []  # entries for the next commit
        self._found = False  # True if URLs were found since the last report
        self._report_at = 0.0
        self._depth = 0  # the lowest depth that may be unfinished
        self._seen = 0  # lowest depth of the URLs taken last
        self._look_at, self._look_interval_seconds = 0.0, FIRST_LOOK_SECONDS
        self._dead_seeds = 0
        self._hosts: dict[str, float] = {}  # hosts on hold, and when each was reported

    def update_for(self, batch: WalkerBatch) -> JournalUpdate | None:
        """Return the journal additions of the commit for this batch; None if there are none."""
        self._found = self._found or bool(batch.found)
        if self._dead_seeds <= MAX_LISTED:
            for done in batch.settled:
                if done.task.depth == 0 and (seed := FailedSeed.settled(done)) is not None:
                    self._seed_failed(seed)
        now = self._clock.monotonic()
        found = self._found and now >= self._report_at
        depth = self._depth if self._seen > self._depth and now >= self._look_at else None
        return JournalUpdate(self._waiting, found, depth) if found or self._waiting or depth is not None else None

    def _seed_failed(self, seed: FailedSeed) -> None:
        self._dead_seeds += 1
        if self._dead_seeds <= MAX_LISTED:
            self._waiting.append(seed_failed(seed))
        elif self._dead_seeds == MAX_LISTED + 1:
            self._waiting.append(more_seeds_failed())

    def learn(self, update: JournalUpdate | None, turn: Turn) -> None:
        """Update the reporter's state from the result of the commit."""
        if turn.work:
            self._seen = min([task.depth for task in turn.work])
        if update is None or not turn.is_journaled:
            return
        self._waiting = []
        if update.found:
            self._found, self._report_at = False, self._clock.monotonic() + EVERY_SECONDS
        if turn.finished is not None:
            self._depth, self._look_interval_seconds = turn.finished + 1, FIRST_LOOK_SECONDS
            self._report_at = 0.0
        elif update.depth is not None:
            self._look_at = self._clock.monotonic() + self._look_interval_seconds
            self._look_interval_seconds = min(2 * self._look_interval_seconds, EVERY_SECONDS)

    def held(self, updates: Mapping[int, HostUpdate], hold_seconds: Mapping[int, float]) -> None:
        """Add an entry for each host that was put on hold."""
        now = self._clock.monotonic()
        if len(self._hosts) > MOST_HOSTS:
            self._hosts.clear()
        for host, seconds in hold_seconds.items():
            update = updates[host]
            if now >= self._hosts.get(update.origin, 0.0):
                self._hosts[update.origin] = now + EVERY_SECONDS
                self._waiting.append(held(update, seconds))
