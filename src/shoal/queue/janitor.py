"""The janitor: puts back what a lost worker held, what nobody took, and what has room again. Several may run at once;
each change is a compare-and-set."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial

from shoal.base.clock import Clock
from shoal.base.errors import StorageFull, TimeError
from shoal.base.service import PassResult
from shoal.base.store_clock import ClockCheck
from shoal.queue.job import RUN_KINDS, LostJob
from shoal.queue.queue import Queue

BATCH = 100
WORTH_TELLING = 1_000_000  # microseconds that a clock went back


class Janitor:
    """Sweeps expired leases.

    A store that was out of reach, or full, kept every worker from extending its lease, so nothing expires within one
    lease of the outage's end. A janitor that has just started needs no such grace: the leases are in the store, not
    with it. But a `wary` one cannot know whether there was an outage just before it came: if no lease at all was
    extended of late, it assumes that there was. Bots speak through a controller that was perhaps away as well: whatever
    they hold is left to them for `bot_grace` after the start. After a jump of the store's clock nothing expires within
    one lease, because holders need that time to extend, and bots get their grace again.
    """

    name = "janitor"

    def __init__(
        self,
        queue: Queue,
        clock: Clock,
        *,
        wary: bool = False,
        bot_grace: timedelta = timedelta(0),
    ) -> None:
        self._queue = queue
        self._clock = clock
        self._hold_until = 0.0
        self._last_pass: float | None = None
        self._outage = False
        self._wary = wary
        self._bot_grace = bot_grace.total_seconds()
        self._bots_until = self._now() + self._bot_grace
        self._store_clock = queue.clock_watch(clock)
        self._own_clock: tuple[int, float] | None = None  # what it showed at the last pass, and when that was

    async def run_once(self) -> PassResult:
        began = self._now()
        try:
            lost = await self._queue.expired(BATCH, bots=self._now() >= self._bots_until)
            self._mind_clocks(await self._store_clock.check())  # after the look: what that found may be a clock's doing
            if self._wary:
                self._outage = bool(lost) and await self._nobody_extends()
                self._wary = False
            tidied = await self._tidy()
            if self._in_grace(began):
                return PassResult(did=tidied)
            moved = await self._expire_all(lost)
        except (TimeError, StorageFull):  # nobody could extend its lease either
            self._last_pass = None
            self._outage = True
            raise
        again = timedelta(0) if len(lost) == BATCH and moved else None
        swept = f"gave back {moved} of {len(lost)} expired leases" if lost else ""
        return PassResult(did=", ".join(filter(None, (swept, tidied))), again_in=again)

    def _in_grace(self, now: float) -> bool:
        """Whether leases get the benefit of the doubt: the store, or this process, was away and has just come back."""
        lease = self._queue.settings.lease.total_seconds()
        last, self._last_pass = self._last_pass, now
        if self._outage or (last is not None and now - last > lease):
            self._outage = False
            self._hold_until = now + lease
        return now < self._hold_until

    async def _tidy(self) -> str:
        """The floor below what others do at once: jobs whose time has come, offers that nobody took, and jobs for which
        there is room again."""
        offers = await self._queue.tidy(BATCH)
        freed = await self._queue.unpark(BATCH)
        done = [(offers, "took back {} offers"), (freed, "let {} jobs that had no room stand in line")]
        return ", ".join(words.format(count) for count, words in done if count)

    async def _expire_all(self, lost: list[LostJob]) -> int:
        """Jobs of one group, and those of none, together in one commit; the work of a run each with it."""
        groups: dict[tuple[str, str | None], list[LostJob]] = {}
        for job in lost:
            if job.kind not in RUN_KINDS:
                groups.setdefault((job.kind, job.run_id), []).append(job)
        sweeps = [partial(self._queue.expire_all, kind, run_id, jobs) for (kind, run_id), jobs in groups.items()]
        return await _each([*sweeps, *(partial(self._queue.expire, job) for job in lost if job.kind in RUN_KINDS)])

    def _now(self) -> float:
        """Seconds that pass while the machine sleeps, too: whoever slept may have been the only one."""
        return self._clock.uptime() / 1e6

    def _mind_clocks(self, store: ClockCheck) -> None:
        """Hold back while the store's clock has just jumped. Our own decides nothing, but whoever looks at the times of
        log lines should know that it went back."""
        lease = self._queue.settings.lease
        if store.jumped_ago < lease:
            jumped_at = self._now() - store.jumped_ago.total_seconds()
            self._hold_until = max(self._hold_until, jumped_at + lease.total_seconds())
            self._bots_until = max(self._bots_until, jumped_at + self._bot_grace)
        last, self._own_clock = self._own_clock, (self._clock.micros(), self._clock.monotonic())
        if last is not None and not store.steps:
            moved = self._own_clock[0] - last[0] - round((self._own_clock[1] - last[1]) * 1e6)
            if moved < -WORTH_TELLING:
                self._store_clock.tell_own_clock(-moved / 1e6)

    async def _nobody_extends(self) -> bool:
        settings = self._queue.settings
        freshest = await self._queue.freshest_lease()
        return freshest is None or freshest < settings.lease - 2 * settings.extend_every


async def _each(sweeps: Sequence[Callable[[], Awaitable[int]]]) -> int:
    """Do them all; one that cannot be done keeps none of the others from it, and is told at the end."""
    moved, failed = 0, list[Exception]()
    for sweep in sweeps:
        try:
            moved += await sweep()
        except (TimeError, StorageFull):  # the store is away or full: for the others, too
            raise
        except Exception as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return moved
