"""Changes of a crawl's state. One commit stores the new state, its event and its journal entry, and emits its
signal."""

from typing import Any

from shoal.base.database import Tx
from shoal.base.errors import NotFound, StateConflict
from shoal.base.signals import Signal, Signals
from shoal.crawl import journal_messages as messages
from shoal.crawl import states
from shoal.crawl.crawl import Counts, Crawl
from shoal.crawl.journal import Journal
from shoal.crawl.states import CrawlMove, CrawlState
from shoal.crawl.store import CrawlStore
from shoal.events.event import Event, append_events

EVENTS = {
    CrawlState.RUNNING: "crawl.started",
    CrawlState.COMPLETED: "crawl.completed",
    CrawlState.FAILED: "crawl.failed",
    CrawlState.STOPPED: "crawl.stopped",
}


class CrawlMoved(Signal, frozen=True, kw_only=True):
    """A crawl changed its state."""

    crawl_id: str
    state: CrawlState
    reason: str | None
    seconds: float | None = None  # from the start of the crawl to its end


class CrawlEnded(Signal, frozen=True, kw_only=True, tag=True):
    """A crawl ended in a child of this process. The metrics use this signal."""

    state: str
    seconds: float | None


class CrawlTransitions:
    """Moves crawls from state to state, in the transaction of the caller."""

    def __init__(self, journal: Journal, signals: Signals) -> None:
        self._store = CrawlStore()
        self.journal = journal
        self._signals = signals

    async def locked(self, tx: Tx, crawl_id: str) -> Crawl:
        """Lock a crawl until the end of the transaction."""
        crawl = await self._store.lock(tx, crawl_id)
        if crawl is None:
            raise NotFound("crawl", crawl_id)
        return crawl

    async def move(self, tx: Tx, crawl: Crawl, move: CrawlMove) -> bool:
        """Change the state, write it to the journal and signal it on commit."""
        counts = await self._store.counts(tx, crawl.number) if move.to in states.TERMINAL else None
        if not await self.set_state(tx, crawl.id, move, counts):
            return False
        ended = await self._store.get(tx, crawl.id) if move.to in states.TERMINAL else None
        self.emit_on_commit(tx, crawl.id, move, None if ended is None else ended.took_seconds)
        entries = [messages.moved(crawl, move, counts)]
        if counts is not None and counts.drained and counts.pages:
            entries = [*await self.journal.finish_depth(tx, crawl.number, counts.depth_reached), *entries]
        await self.journal.write(tx, crawl.number, entries)
        return True

    async def set_state(
        self, tx: Tx, crawl_id: str, move: CrawlMove, counts: Counts | None = None, *, with_event: bool = True
    ) -> bool:
        """Change the state and append its event. Without `with_event`, no event is appended, because a crawl has only
        one start event. `counts`: the counts of a crawl that ends."""
        moved = await self._store.move(tx, crawl_id, move)
        if moved and with_event and move.to in EVENTS:
            data: dict[str, Any] = {"crawl_id": crawl_id, "reason": move.reason}
            if counts is not None:
                said = messages.left_in_quarantine(crawl_id, move.to, counts.held) if counts.held else None
                data |= {"skipped": counts.skipped, "message": said}
            await append_events(tx, Event(EVENTS[move.to], crawl_id, data))
        return moved

    def emit_on_commit(self, tx: Tx, crawl_id: str, move: CrawlMove, seconds: float | None = None) -> None:
        """Emit the signal for a state change once the change is committed."""
        moved = CrawlMoved(crawl_id=crawl_id, state=move.to, reason=move.reason, seconds=seconds)
        tx.on_commit(lambda: self._signals.emit(moved))


def conflict(crawl: Crawl, action: str) -> StateConflict:
    """Return the error for a change that the crawl's state does not allow. The error says what a user can do
    instead."""
    advice = "it has ended" if action in ENDING and crawl.state in states.TERMINAL else INSTEAD.get(crawl.state)
    return StateConflict("crawl", crawl.id, crawl.state, action, advice and advice.replace("ID", crawl.id))


INSTEAD = {
    CrawlState.PENDING: "start it first",
    CrawlState.STOPPING: "a stopped crawl cannot continue; start a new one, with --recrawl-of to recrawl only changes",
    CrawlState.STOPPED: "a stopped crawl cannot continue; start a new one, with --recrawl-of to recrawl only changes",
    CrawlState.COMPLETED: "it has ended; retry its failed URLs with `shoal crawls retry ID --all`",
    CrawlState.FAILED: "it has ended; continue it with `shoal crawls retry ID`",
}
"""Advice by state: what a user can do with the crawl instead of the rejected action."""
ENDING = frozenset({"be paused", "be stopped"})  # a caller who wants to end a crawl does not want to resume it
