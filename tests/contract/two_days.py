"""Two days of many policies in seconds: schedulers that die, bots that die, are slow or send false results, and a
receiver that loses events.

`Days` lives through the time and keeps what each party saw. The test checks the result against the `Diary` of a policy:
the times at which its jobs must have been created, computed from its schedule alone.
"""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import orjson

from shoal.base.clock import FakeClock, from_micros, to_micros
from shoal.base.database import Database, Tx, Work
from shoal.base.errors import BackendUnavailable
from shoal.base.service import Chore
from shoal.base.settings_loader import load
from shoal.egress import Egress
from shoal.events.courier import Courier
from shoal.events.store import WebhookStore
from shoal.events.webhook import NewWebhook
from shoal.page_jobs.result import ResultDelivery, Status
from shoal.plan.policy_file import read_json_lines
from shoal.plan.schedule import Schedule
from shoal.queue.job import Fence
from tests.contract.bad_bots import Bot, Liar, Mortal, Slow, bots_of, result_of
from tests.contract.conftest import Bench, database_at
from tests.support.bad_http_server import Asked, BadServer, Line, bad_server, reply

T = TypeVar("T")

MINUTE, HOUR = 60_000_000, 3_600_000_000
BEGINS = datetime(2026, 3, 28, tzinfo=UTC)  # clocks in Europe go forward on the next day
HOURS = 48
NEVER = 2**62
SETTINGS = load(
    {"SHOAL_ALLOW_NETWORKS": "127.0.0.0/8", "SHOAL_SCHEDULE_BACKLOG": "1000000", "SHOAL_PAGE_SPEED": "max"}, env={}
).settings
FROZEN_CLOCK = """
    CREATE OR REPLACE FUNCTION server_now(shift BIGINT) RETURNS BIGINT LANGUAGE sql STABLE AS
    $$ SELECT shift $$
"""
FREQUENCIES = {"25m": 25, "1h": 60, "90m": 90, "2h": 120, "4h": 240, "6h": 360, "8h": 480, "12h": 720, "24h": 1440}
OFTEN = (1, 1, 1, 3, 5, 10, 15, 30, 34)  # how many policies have each of these
JITTER = timedelta(minutes=20)
DAILY = True  # at a fixed time of day: still run if the clock jumps over it


@dataclass(frozen=True)
class Cron:
    """A cron expression, and what it means."""

    text: str
    timezone: str
    means: Callable[[datetime], bool]
    daily: bool = False


CRONS = (
    Cron("*/40 * * * *", "UTC", lambda at: at.minute % 40 == 0),
    Cron("15 6,18 * * *", "Asia/Tokyo", lambda at: at.minute == 15 and at.hour in (6, 18), DAILY),
    Cron("30 2 * * *", "Europe/Berlin", lambda at: (at.hour, at.minute) == (2, 30), DAILY),  # not on that Sunday
    Cron("0 */3 * * *", "America/New_York", lambda at: at.minute == 0 and at.hour % 3 == 0),
    Cron("5 9 * * 0", "Europe/Berlin", lambda at: (at.hour, at.minute, at.weekday()) == (9, 5, 6), DAILY),
)


class Dying:
    """The database of a process that is killed now and then: before a commit, or before it learns that the commit
    succeeded."""

    def __init__(self, database: Database, dice: random.Random, chance: float) -> None:
        self._database = database
        self._dice = dice
        self.chance = chance
        self.died = 0

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T:
        if self._dice.random() >= self.chance:
            return await self._database.run(work)
        self.died += 1
        if self._dice.random() < 0.5:
            await self._database.run(work)
        else:
            with suppress(_Killed):
                await self._database.run(lambda tx: _undone(tx, work))
        raise BackendUnavailable("the store", "the process was killed", "start it again")

    async def once(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self.run(work)

    async def read(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self._database.read(work)

    async def close(self) -> None:
        """Do nothing: the caller that opened the real database closes it."""


class _Killed(Exception):
    pass


async def _undone(tx: Tx, work: Work[T]) -> T:
    await work(tx)
    raise _Killed


@dataclass
class Days:
    """The whole installation on one store, and a record of what each process saw."""

    bench: Bench
    server: BadServer
    dice: random.Random
    passes: list[int] = field(default_factory=list)  # when a pass of a scheduler succeeded
    accepted: list[ResultDelivery] = field(default_factory=list)
    received: dict[str, set[bytes]] = field(default_factory=dict)
    deliveries: int = 0
    believed: list[str] = field(default_factory=list)  # false or late results that were accepted
    lies: int = 0
    late: int = 0
    lost: int = 0  # correct results that came too late
    kills: int = 0

    def __post_init__(self) -> None:
        app = self.bench.app
        self.hooks = WebhookStore()
        self.policies, self.importer, self.webhooks = app.plan.policies, app.plan.importer, app.events.webhooks
        self.dying = Dying(self.bench.database, self.dice, 0.05)
        mortal, other = self.bench.over(self.dying).app, self.bench.over(self.dying).app
        self.schedulers = [mortal.plan.scheduler, other.plan.scheduler]
        self.site_schedulers = [mortal.plan.site_scheduler, other.plan.site_scheduler]
        self.forwarder = mortal.chores.forwarder
        self.courier = self.new_courier()
        self.api, self.sure_api = bots_of(mortal), bots_of(app)
        self.bots = [
            Mortal(self, "tok_mortal", 2),
            Slow(self, "tok_slow", 2),
            Liar(self, "tok_liar", 3),
            Bot(self, "tok_honest", 400),
        ]
        self.pulling = self.bots
        self.server.scripts["/hook"] = self.receive

    def new_courier(self) -> Courier:
        """Return a courier whose jitter is that of our dice."""
        return Courier(
            self.dying,
            lambda: Egress(self.bench.app.address_rule),
            self.bench.clock,
            self.bench.signals,
            self.dice.random,
        )

    @property
    def now(self) -> int:
        return self.bench.clock.micros()

    async def receive(self, line: Line, asked: Asked) -> None:
        """Record the delivery; now and then respond with an error, or not at all."""
        self.deliveries += 1
        self.received.setdefault(asked.headers["webhook-id"], set()).add(asked.body)
        luck = self.dice.random()
        if luck < 0.01:
            raise ConnectionResetError
        await line.send(reply(503 if luck < 0.02 else 204, b""))

    def answer(self, fence: Fence) -> ResultDelivery:
        """A page that changes now and then; a tenth of the tries fail."""
        failed = self.dice.random() < 0.1
        digest = f"{self.dice.randrange(2)}"
        return ResultDelivery(fence, result_of(Status.FAIL if failed else Status.SUCCESS, self.now, digest))

    async def begin(self, forms: list[dict[str, Any]]) -> None:
        """Make policies, all in one commit."""
        lines = [orjson.dumps(form).decode() for form in forms]
        report = await self.importer.take(iter(read_json_lines(lines)), skip_bad=False)
        assert report.made == len(forms), report

    async def hook(self) -> None:
        await self.webhooks.make(NewWebhook(url=f"http://127.0.0.1:{self.server.port}/hook"))

    async def live(self, minutes: float, *, schedulers: bool = True) -> None:
        """One round: schedule, pull, push, sweep, deliver events; then advance the clock."""
        if schedulers:
            await self._plan()
        await self.bench.jump(5)
        for bot in self.pulling:
            await bot.pull()
        await self.bench.jump(20)
        await self.bench.janitor().run_once()
        for bot in self.bots:
            await bot.push()
        await self._end_crawls()
        await self.bench.jump(5)
        await self._tell()
        await self.bench.jump(minutes * 60 - 30)

    async def _plan(self) -> None:
        """When one of them is killed, the other continues."""
        for first, second in (self.schedulers, self.site_schedulers):
            done = [await self._survives(first), await self._survives(second)]
            if not all(done):
                await self._last_word(second)
        self.passes.append(self.now)

    async def _end_crawls(self) -> None:
        """Most site crawls end soon; other tests cover how they run."""
        for seen in await self.bench.crawls.newest(state="queued", limit=1000):
            if not self.dying.chance or self.dice.random() < 0.2:
                await self.bench.crawls.stop(seen.crawl.id)

    async def _tell(self) -> None:
        await self._survives(self.forwarder)
        await self.courier.run_once()
        await self.courier.rest()
        if self.dice.random() < 0.02:
            await self.courier.close()
            self.courier = self.new_courier()

    async def _survives(self, chore: Chore) -> bool:
        try:
            while (await chore.run_once()).again_in is not None:
                pass
        except BackendUnavailable:
            self.kills += 1
            return False
        return True

    async def _last_word(self, chore: Chore) -> None:
        while not await self._survives(chore):
            pass

    async def settle(self) -> None:
        """Run until nothing is in flight and every event is delivered."""
        self.dying.chance = 0.0
        self.pulling = self.bots[-1:]
        for _ in range(60):
            await self.live(11, schedulers=False)
            waiting = "SELECT count(*) FROM job WHERE finished_at IS NULL"
            untold = "SELECT count(*) FROM delivery WHERE state <> 'delivered'"
            if not await self.bench.number(waiting) + await self.bench.number(untold):
                return
        raise AssertionError("it never comes to rest")


@asynccontextmanager
async def days_of(url: str, seed: int, begins: datetime = BEGINS) -> AsyncIterator[Days]:
    clock = FakeClock(begins)
    database = database_at(url, clock)
    await database.open(upgrade=True)
    bench = Bench(url, database, clock, database.dialect, defaults=SETTINGS)
    if bench.dialect == "postgres":
        await bench.sql(FROZEN_CLOCK)
        await bench.sql(f"UPDATE store_clock SET shift = {clock.micros()}")
    async with bad_server() as server:
        days = Days(bench, server, random.Random(seed))
        try:
            yield days
        finally:
            await days.courier.close()
            await bench.close()


def forms(count: int, dice: random.Random) -> list[dict[str, Any]]:
    """Policies of every kind; each says in its labels which it is."""
    return [_form(place, dice) for place in range(count)]


def _form(place: int, dice: random.Random) -> dict[str, Any]:
    if place % 100 == 7:
        return {
            "seeds": [f"http://www{place % 50}.example.org/"],
            "overlap": ("skip", "queue", "replace")[place % 3],
            "frequency": dice.choice(["90m", "2h", "4h"]),
        }
    form = {
        "url": f"http://www{place % 50}.example.org/{place}",
        "overlap": ("skip", "queue", "replace")[place % 3],
        "lock_ttl": dice.choice(["5m", "10m", "30m"]),
        "max_retry": dice.choice([0, 1, 3, 3]),
        "priority_base": dice.randrange(101),
        "crawl_config": {"js_required": dice.random() < 0.2},
    }
    kind = place % 10
    if kind == 0:
        cron = CRONS[place // 10 % len(CRONS)]
        return form | {"cron": cron.text, "timezone": cron.timezone}
    [frequency] = dice.choices(list(FREQUENCIES), OFTEN)
    if FREQUENCIES[frequency] <= 240:  # a bad bot may still hold it when its next run is due
        form |= {"lock_ttl": "5h", "priority_base": 95}
    if kind == 1:
        return form | {"frequency": "6h", "adaptive": {"min": "2h", "max": "12h"}}
    if kind == 2:
        return form | {"frequency": frequency, "windows": ["08:00-18:00"]}
    if kind == 3:
        return form | {"frequency": frequency, "jitter": "20m"}
    return form | {"frequency": frequency}


@dataclass
class Diary:
    """The times at which the jobs of one policy must have been created, computed independently of the scheduler."""

    policy_id: str
    form: dict[str, Any]
    begun: int
    lives: list[tuple[int, int]]  # of its jobs, or crawls: made, ended
    hashes: list[tuple[int, str]]  # of its successful runs, with the time at which they ended

    def __post_init__(self) -> None:
        self.step = FREQUENCIES.get(self.form["frequency"] or "", 0) * MINUTE
        self.points = list(cron_points(self.form["cron"], self.begun)) if self.form["cron"] else []
        self.planned = self.points[0] if self.points else self.begun
        self.held: int | None = None  # until its window opens: it came too late for the one before
        self.hash: str | None = None
        self.overlaps = 0

    def made(self, passes: list[int]) -> list[int]:
        """Return the times at which a job must have been created, given the times of successful scheduler passes."""
        found, owed = [], False
        for now in passes:
            self._note(now)
            begins = self._begins() if self.held is None else self.held
            due = begins <= now
            lives = any(made < now and (ended > now or self._is_replaced(now, ended)) for made, ended in self.lives)
            if (due or (owed and not lives)) and (opens := self._opens(now)) > now:
                self.held, owed = opens if due else min(opens, begins), False
                continue
            self._move_past(now, due=due)
            self.overlaps += due and lives
            if due and lives and self.form["overlap"] == "queue":
                owed = True
            if (due and (not lives or self.form["overlap"] == "replace")) or (owed and not lives):
                found.append(now)
                owed = False
        return found

    def _is_replaced(self, now: int, ended: int) -> bool:
        return ended == now and self.form["overlap"] == "replace"

    def _begins(self) -> int:
        """Return when a run begins: when its window opens, plus jitter, whose bounds `test_schedule` checks."""
        if self.form["jitter"] != "0s":
            return Schedule(jitter=JITTER).begins(self.policy_id, self.planned)
        return self._opens(self.planned)

    def _opens(self, moment: int) -> int:
        """The moment itself if a run may begin then, else when the window opens next."""
        if not self.form["windows"]:
            return moment
        at = from_micros(moment)
        opens = at.replace(hour=8, minute=0, second=0, microsecond=0)
        if opens <= at < opens + timedelta(hours=10):
            return moment
        return to_micros(opens if at < opens else opens + timedelta(days=1))

    def _move_past(self, now: int, *, due: bool) -> None:
        """Move to the next point in the future, if the current one is due."""
        if due:
            self.held = None
            self._move()
        while due and self.planned <= now:
            self._move()

    def _move(self) -> None:
        if not self.points:
            self.planned += self.step
        else:
            self.points.pop(0)
            self.planned = self.points[0]

    def _note(self, now: int) -> None:
        while self.hashes and self.hashes[0][0] < now:
            _, brought = self.hashes.pop(0)
            if self.form["adaptive"] and self.hash is not None:
                wanted = self.step * 3 // 2 if brought == self.hash else self.step // 2
                step = max(2 * HOUR, min(12 * HOUR, wanted))
                self.planned += step - self.step
                self.step = step
            self.hash = brought


@cache
def cron_points(text: str, begun: int) -> list[int]:
    """Compute the matching times minute by minute in local time. A daily run in a skipped hour is made up for."""
    [cron] = [one for one in CRONS if one.text == text]
    zone = ZoneInfo(cron.timezone)
    minute = begun // MINUTE * MINUTE + MINUTE
    before = from_micros(minute - MINUTE).astimezone(zone)
    found = []
    for _ in range((HOURS + 1) * 60):
        at = from_micros(minute).astimezone(zone)
        skipped = (at.utcoffset() or timedelta()) - (before.utcoffset() or timedelta())
        jumped = [at - timedelta(minutes=back) for back in range(1, skipped // timedelta(minutes=1) + 1)]
        if cron.means(at) or (cron.daily and any(cron.means(one) for one in jumped)):
            found.append(minute)
        before, minute = at, minute + MINUTE
    return [*found, NEVER]
