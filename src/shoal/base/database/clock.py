"""The store's clock (decision 0033). Leases, slots, holds, retries and policies use it, never the clock of a process.
The store's clock never goes back. If the underlying clock is set back, the store's clock continues until the underlying
clock has caught up. If the underlying clock is set forward, the store's clock jumps forward, too.

Both dialects keep an anchor: the store's clock showed `at` when the underlying clock showed `since`. From there the
store's clock follows the underlying clock. While the store's clock is ahead, it runs at nine tenths of the speed, so
that the underlying clock catches up.

On PostgreSQL, the underlying clock is the server's clock. On SQLite, it is the uptime of the machine plus a `base`: the
difference between wall clock and uptime at the last check. So on SQLite, a step of the wall clock has no effect until a
check absorbs it.
"""

from datetime import timedelta
from typing import Protocol

from msgspec import Struct
from msgspec.structs import asdict, replace

from shoal.base.clock import Clock
from shoal.base.database import Database, Tx
from shoal.base.service import PassResult
from shoal.base.signals import Signal, Signals

SECOND = 1_000_000
TOLERANCE = 1 * SECOND  # smaller steps are ignored: they are harmless, and a busy machine reads clocks late
MARK_EVERY = 60 * SECOND  # maximum age of the anchor, the only reference of a machine that boots with a wrong clock
MARK_AHEAD_EVERY = 10 * SECOND  # maximum age while the store's clock is ahead of the PostgreSQL server's clock


class ClockStepped(Signal, frozen=True, kw_only=True):
    """The clock that underlies the store's clock was set: the database server's clock, or the machine's for SQLite."""

    direction: str  # `back` or `forward`
    seconds: float


class OwnClockSetBack(Signal, frozen=True, kw_only=True):
    """The clock of this process's machine was set back. Nothing depends on it."""

    seconds: float


class ClockCheck(Struct, frozen=True):
    """The result of a check: steps not yet reported, in seconds, and the time since the store's clock jumped."""

    steps: tuple[float, ...]
    jumped_ago: timedelta


class StoreClock(Protocol):
    async def check(self, database: Database, clock: Clock) -> ClockCheck:
        """Compare the underlying clock with the uptime of this machine, and absorb a step. Call this about once a
        second, from any number of processes. Only the process that absorbs a step gets it in its result."""
        ...


def store_clock(dialect: str) -> StoreClock:
    return SqliteClock() if dialect == "sqlite" else PostgresClock()


def store_time(below: int, at: int, since: int) -> int:
    """Return the time of the store's clock when the underlying clock shows `below`."""
    if at <= since:  # the store's clock is not ahead
        return below
    return max(below, at + 9 * (below - since) // 10)


class ClockAnchor(Struct, frozen=True):
    """The anchor of a SQLite file's clock. `jumped_at`: when the clock last jumped forward. `untold`: the size of a
    step that was not reported yet."""

    boot: str = ""
    base: int = 0
    at: int = 0
    since: int = 0
    jumped_at: int = 0
    untold: int = 0

    def now(self, uptime: int) -> int:
        return store_time(self.base + uptime, self.at, self.since)


class WallClock(Struct, frozen=True):
    """The wall clock, read between two readings of the uptime."""

    boot: str
    micros: int
    before: int
    after: int

    @classmethod
    def of(cls, clock: Clock) -> "WallClock":
        before = clock.uptime()
        micros = clock.micros()
        return cls(clock.boot, micros, before, clock.uptime())


def after_boot(anchor: ClockAnchor, wall: WallClock) -> ClockAnchor | None:
    """Return the anchor after a reboot or on a different machine; None if the machine was not restarted."""
    if anchor.boot == wall.boot and wall.after >= anchor.since - anchor.base:
        return None
    base = wall.micros - wall.after
    if wall.micros >= anchor.at:
        return replace(anchor, boot=wall.boot, base=base, at=wall.micros, since=wall.micros)
    at = anchor.at + MARK_EVERY  # nothing was stored later than one `MARK_EVERY` after the anchor
    untold = anchor.untold + wall.micros - at
    return replace(anchor, boot=wall.boot, base=base, at=at, since=wall.micros, untold=untold)


def after_check(anchor: ClockAnchor, wall: WallClock) -> tuple[ClockAnchor, int]:
    """Return the anchor after a check of the wall clock, and by how much the wall clock was set since the last
    check."""
    anchor = after_boot(anchor, wall) or anchor
    now = anchor.now(wall.after)
    step = wall.micros - wall.after - anchor.base
    if step <= TOLERANCE and step + (wall.after - wall.before) >= -TOLERANCE:
        is_old = anchor.base + wall.after - anchor.since >= MARK_EVERY
        return replace(anchor, at=now, since=anchor.base + wall.after) if is_old else anchor, 0
    jumped_at = wall.micros if wall.micros > now + TOLERANCE else anchor.jumped_at
    base = wall.micros - wall.after
    return replace(anchor, base=base, at=now, since=wall.micros, jumped_at=jumped_at), step


class SqliteClock:
    async def check(self, database: Database, clock: Clock) -> ClockCheck:
        anchor, now = await database.read(_read)
        if after_check(anchor, WallClock.of(clock))[0] == anchor and not anchor.untold:
            return _checked((), now, anchor.jumped_at)

        async def absorb(tx: Tx) -> tuple[ClockAnchor, list[int], int]:
            anchor, _ = await _read(tx)
            new, step = after_check(anchor, WallClock.of(clock))
            if new != anchor or anchor.untold:
                await tx.execute("anchor_machine_clock", **asdict(replace(new, untold=0)))
            return new, [seen for seen in (new.untold, step) if seen], new.now(clock.uptime())

        new, steps, now = await database.run(absorb)
        return _checked(steps, now, new.jumped_at)


async def _read(tx: Tx) -> tuple[ClockAnchor, int]:
    [row] = await tx.all("clock")
    return ClockAnchor(**{name: row[name] for name in ClockAnchor.__struct_fields__}), row["now"]


class _Reading(Struct, frozen=True):
    """The server's clock, read between two readings of this machine's uptime."""

    server: int
    now: int
    since: int
    jumped_at: int
    before: int
    after: int


class PostgresClock:
    """The store's clock on PostgreSQL. Each process remembers its last reading, because only a comparison with the
    uptime of its machine shows that the server's clock was set."""

    def __init__(self) -> None:
        self._last: _Reading | None = None

    async def check(self, database: Database, clock: Clock) -> ClockCheck:
        before = clock.uptime()
        [row] = await database.read(lambda tx: tx.all("clock"))
        new = _Reading(row["server"], row["now"], row["since"], row["jumped_at"], before, clock.uptime())
        step, at = self._compare(new)
        is_old = new.server - new.since >= (MARK_AHEAD_EVERY if new.now > new.server else MARK_EVERY)
        if not step and not is_old:
            self._last = new
            return _checked((), new.now, new.jumped_at)
        at = max(at, new.now)
        jumped_at = max(at, new.server) if step else new.jumped_at
        seen = {"seen_since": new.since, "seen_jumped_at": new.jumped_at}
        first = await database.run(
            lambda tx: tx.execute("anchor_server_clock", at=at, since=new.server, jumped_at=jumped_at, **seen)
        )
        if not first:  # a different process set an anchor first; the next check shows whether it absorbed this step
            return _checked((), new.now, new.now if step else new.jumped_at)
        self._last = replace(new, now=max(at, new.server), since=new.server, jumped_at=jumped_at)
        return _checked([step] if step else (), self._last.now, jumped_at)

    def _compare(self, new: _Reading) -> tuple[int, int]:
        """Return by how much the server's clock was set, and the least time that the store's clock must show."""
        last = self._last
        if last is not None and last.jumped_at == new.jumped_at:
            moved = new.server - last.server
            least, most = new.before - last.after, new.after - last.before
            if moved < least - TOLERANCE:
                return moved - least, last.now + least
            if moved > most + TOLERANCE:
                return moved - most, new.now
            if new.server >= new.since - TOLERANCE:
                return 0, last.now + 9 * least // 10  # correct even if the last check was long ago
        if new.server < new.since - TOLERANCE:
            return new.server - new.since, new.now + (MARK_EVERY if last is None else 0)
        return 0, new.now


def _checked(steps: "tuple[int, ...] | list[int]", now: int, jumped_at: int) -> ClockCheck:
    return ClockCheck(tuple(step / SECOND for step in steps), timedelta(microseconds=max(0, now - jumped_at)))


class ClockWatch:
    """The chore that checks the store's clock and reports steps to the operator."""

    name = "clock"

    def __init__(self, database: Database, store_clock: StoreClock, clock: Clock, signals: Signals) -> None:
        self._database = database
        self._store_clock = store_clock
        self._clock = clock
        self._signals = signals

    async def run_once(self) -> PassResult:
        await self.check()
        return PassResult()

    async def check(self) -> ClockCheck:
        found = await self._store_clock.check(self._database, self._clock)
        for seconds in found.steps:
            direction = "back" if seconds < 0 else "forward"
            self._signals.emit(ClockStepped(direction=direction, seconds=abs(seconds)))
        return found

    def report_own_clock(self, seconds: float) -> None:
        self._signals.emit(OwnClockSetBack(seconds=seconds))
