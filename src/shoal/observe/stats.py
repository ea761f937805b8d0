"""Statistics of the store: hourly statistics, and table sizes."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from shoal.base.database import Database, Tx
from shoal.base.errors import ShoalError
from shoal.base.service import PassResult
from shoal.base.signals import Signal, Signals

HOUR: Final = 3_600_000_000  # microseconds
EVERY: Final = timedelta(seconds=5)
MOST_BOTS: Final = 10_000  # maximum number of bots per batch
ENDS: Final = {"done": "done", "failed": "failed", "retried": "retried", "expired": "lost", "crashed": "lost"}
PAGES: Final = "pages"  # used in place of a job kind for the number of pages by status class
Counted = tuple[str, str]  # job kind, and outcome
Bot = tuple[str, str]  # token, and the name that the bot sends
BOT_COUNTS: Final = (
    *("pulled", "results", "failures", "invalid_data", "late_results", "heartbeats", "late_heartbeats"),
    "lost_leases",
)


class StatisticsRefused(Signal, frozen=True, kw_only=True):
    """A row of the statistics was dropped because the store rejected it; all other rows are stored."""

    row: str
    error: str


@dataclass(slots=True)
class Batch:
    """The counts since the last batch."""

    amounts: Counter[Counted] = field(default_factory=Counter)
    bots: dict[Bot, Counter[str]] = field(default_factory=dict)  # number of requests, and the counts in BOT_COUNTS

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.amounts) + len(self.bots)

    def halves(self) -> "tuple[Batch, Batch]":
        if self.amounts and self.bots:
            return Batch(self.amounts), Batch(bots=self.bots)
        amounts, bots, half = list(self.amounts.items()), list(self.bots.items()), len(self) // 2
        return (
            Batch(Counter(dict(amounts[:half])), dict(bots[:half])),
            Batch(Counter(dict(amounts[half:])), dict(bots[half:])),
        )


@dataclass(frozen=True, slots=True)
class HourRow:
    """The statistics of one hour, by the store's clock."""

    hour: int
    amounts: Mapping[str, float]
    bots: int

    def count(self, name: str) -> int:
        return round(self.amounts.get(name, 0))

    @property
    def retry_rate(self) -> float | None:
        """The share of finished attempts that were retried; None without finished attempts."""
        retried = self.count("retried")
        finished = self.count("done") + self.count("failed") + retried
        return round(retried / finished, 4) if finished else None

    @property
    def average_seconds(self) -> float | None:
        """The average duration of the timed fetches; None without timed fetches."""
        timed = self.amounts.get("timed", 0)
        return round(self.amounts.get("seconds", 0) / timed, 3) if timed else None


@dataclass(frozen=True, slots=True)
class BotActivity:
    """A bot that sent requests, and the numbers of its actions."""

    token: str
    bot_id: str
    seen_at: int
    pulled: int = 0  # jobs
    results: int = 0  # accepted results
    failures: int = 0  # results that report a failure
    invalid_data: int = 0  # results that lack a required field
    late_results: int = 0  # rejected because the lease was not valid
    heartbeats: int = 0
    late_heartbeats: int = 0  # rejected because the lease was not valid
    lost_leases: int = 0  # expired leases: no result or heartbeat arrived in time


class HourlyStatsReader:
    """Reads the stored statistics."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, hours: int, kind: str | None, most_bots: int) -> tuple[list[HourRow], list[BotActivity]]:
        """Return the statistics of the last `hours` hours, newest first and without hours that had no activity, and the
        bots that sent requests in this time, most recent first. Both are read in one transaction."""

        async def look(tx: Tx) -> tuple[list[HourRow], list[BotActivity]]:
            now: int = await tx.value("now")
            since = now - now % HOUR - (hours - 1) * HOUR
            bots = {row["hour"]: row["bots"] for row in await tx.all("bots_by_hour", since=since)}
            amounts: dict[int, dict[str, float]] = defaultdict(dict)
            for row in await tx.all("hours", since=since, kind=kind):
                amounts[row["hour"]][row["name"]] = row["amount"]
            seen = sorted({*amounts, *bots}, reverse=True)
            rows = [HourRow(hour, amounts[hour], bots.get(hour, 0)) for hour in seen]
            return rows, [_activity(row) for row in await tx.all("bots_seen", since=since, limit=most_bots)]

        return await self._database.read(look)


def _activity(row: Any) -> BotActivity:
    counts = {name: int(row[name]) for name in BOT_COUNTS}
    return BotActivity(row["token"], row["bot_id"], row["seen_at"], **counts)


class HourlyStats:
    """Counts signals in memory. Signals are identified by class name, as in `log_messages`."""

    def __init__(self) -> None:
        self._batch = Batch()
        self.handlers: Mapping[str, Callable[[Any], None]] = {
            "JobEnqueued": lambda signal: self._count(signal.kind, "created", signal.is_new * len(signal.job_ids)),
            "JobMoved": self._job_moved,
            "JobsMoved": lambda signal: self._ended(signal.kind, str(signal.how), signal.count),
            "ResultsTaken": self._results_taken,
            "PagesSettled": self._pages_settled,
            "BotAsked": lambda signal: self._bot(signal, {"requests": 1}),
            "BotPulled": lambda signal: self._bot(signal, {"requests": 1, "pulled": signal.jobs}),
            "BotReported": lambda signal: self._bot(signal, {"requests": 1, **signal.counts}),
            "BotLeasesLost": lambda signal: self._bot(signal, {"lost_leases": signal.count}),
        }

    def listen(self, signal: Signal) -> None:
        count = self.handlers.get(type(signal).__name__)
        if count is not None:
            count(signal)

    def take(self) -> Batch:
        """Return the counts and reset them."""
        batch, self._batch = self._batch, Batch()
        return batch

    def put_back(self, batch: Batch) -> None:
        """Add a batch that could not be stored to the next batch."""
        self._batch.amounts += batch.amounts
        for bot, done in batch.bots.items():
            self._add(bot, done)

    def _count(self, kind: str, name: str, amount: float) -> None:
        self._batch.amounts[kind, name] += amount  # type: ignore[assignment]

    def _ended(self, kind: str, how: str, count: int) -> None:
        if how in ENDS:
            self._count(kind, ENDS[how], count)

    def _job_moved(self, signal: Any) -> None:
        self._ended(signal.kind, str(signal.how), 1)
        if str(signal.to) == "expired":
            self._count(signal.kind, "expired", 1)

    def _results_taken(self, signal: Any) -> None:
        self._count(signal.kind, "timed", signal.timed)
        self._count(signal.kind, "seconds", signal.seconds)

    def _pages_settled(self, signal: Any) -> None:
        for name, count in signal.pages.items():
            self._count(PAGES, name, count)

    def _bot(self, signal: Any, done: Mapping[str, int]) -> None:
        self._add((signal.token, signal.bot_id), done)

    def _add(self, bot: Bot, done: Mapping[str, int]) -> None:
        if len(self._batch.bots) < MOST_BOTS or bot in self._batch.bots:
            self._batch.bots.setdefault(bot, Counter()).update(done)


class HourlyStatsWriter:
    """Writes the counts to the store at intervals, and once more when the process ends. A row that the store rejects is
    dropped."""

    name = "hourly stats"

    def __init__(self, database: Database, signals: Signals) -> None:
        self._database = database
        self._signals = signals
        self._hours = HourlyStats()
        signals.subscribe(self._hours.listen)

    async def run_once(self) -> PassResult:
        batch = self._hours.take()
        waiting, refused = [batch] if batch else [], list[tuple[Batch, Exception]]()
        try:
            while waiting:
                await self._store(waiting, refused)
            if len(refused) == len(batch) > 1:
                raise refused[0][1]  # if all rows are rejected, the cause is not in the rows
        except BaseException:
            for part in [*waiting, *(row for row, _ in refused)]:
                self._hours.put_back(part)
            raise
        for row, error in refused:
            name = [*row.amounts, *row.bots][0]
            self._signals.emit(StatisticsRefused(row=" ".join(name), error=repr(error)))
        return PassResult()

    async def _store(self, waiting: list[Batch], refused: list[tuple[Batch, Exception]]) -> None:
        """Store the last waiting batch. If the store rejects the batch, halve it, so that in the end only single rows
        are rejected."""
        part = waiting[-1]
        try:
            await self._database.run(lambda tx: _add_to_hour(tx, part))
            waiting.pop()
        except ShoalError:
            raise
        except Exception as error:
            waiting.pop()
            if len(part) == 1:
                refused.append((part, error))
            else:
                waiting += part.halves()

    async def close(self) -> None:
        await self.run_once()


async def _add_to_hour(tx: Tx, batch: Batch) -> None:
    """Add a batch to the current hour, by the store's clock."""
    now: int = await tx.value("now")
    hour = now - now % HOUR
    # The rows are sorted, so that two processes that write at the same time cannot deadlock.
    amounts = [(hour, kind, name, float(amount)) for (kind, name), amount in sorted(batch.amounts.items())]
    bots = [
        (hour, *bot, now if done["requests"] else 0, *(done[name] for name in BOT_COUNTS))
        for bot, done in sorted(batch.bots.items())
    ]
    if amounts:
        await tx.many("add_to_hours", amounts)
    if bots:
        await tx.many("add_bots_to_hour", bots)


@dataclass(slots=True)
class HourlyStatsRetention:
    """Retention of hourly statistics. Implements `queue.pruner.RetentionRule`."""

    keep: timedelta
    name: str = "hourly stats"

    async def prune(self, database: Database, before: int, limit: int) -> tuple[int, bool]:
        async def forget(tx: Tx) -> int:
            jobs = await tx.execute("forget_job_hours", before=before)
            return jobs + await tx.execute("forget_bot_hours", before=before)

        return await database.run(forget), False


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of one table. None means that the number is unknown without reading the whole table."""

    name: str
    rows: int | None  # an estimate
    bytes: int | None


@dataclass(frozen=True, slots=True)
class StoreSize:
    """The size of a store. `free` is the number of bytes inside the store that new rows use first, or None if
    unknown."""

    bytes: int
    free: int | None
    tables: tuple[TableSize, ...]


async def read_store_size(database: Database) -> StoreSize:
    """Return the sizes. Row counts are estimates of PostgreSQL, or in SQLite the range of row numbers, which includes
    removed rows. The numbers of URLs and pages are the sums of the crawls' counters."""

    async def look(tx: Tx) -> StoreSize:
        rows = await tx.all("table_sizes")
        counted = dict(await tx.one("rows_of_crawls") or {})
        tables = tuple(TableSize(row["name"], counted.get(row["name"], row["rows"]), row["bytes"]) for row in rows)
        whole = await tx.one("store_size") or {"bytes": 0, "free": None}
        return StoreSize(int(whole["bytes"] or 0), whole["free"], tables)

    return await database.read(look)
