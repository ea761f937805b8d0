"""Chaos for a fleet: processes are killed, the database is stopped and clocks are set at random but repeatable moments,
while work continues.

The same seed plans the same strikes; what each of them interrupts depends on timing. Between two kills every running
crawl gets a new page, because three deaths in a row with the same page in flight are blamed on that page. Sites answer
only a limited number of pages between two faults, so that work is still in progress however slow the machine is.
"""

import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.clocks import HOUR, SettableClock
from tests.support.fleet import Fleet, Shoal, send_all, wait_for
from tests.support.servers import PostgresServer, ask_postgres
from tests.support.site import Site

STRIKES = frozenset({"child", "worker", "controller", "backends", "restart", "crash", "outage"})
NO_STORE = 8  # the exit code for an unavailable store
LONGEST_PAUSE = 0.25
LONGEST_SLEEP = 3  # number of faults for which a crawl stays paused
OUTAGE_SECONDS = 4.0  # forty, at a tenth
END_ALL_BACKENDS = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'shoal'"


@dataclass
class Work:
    """A crawl or page jobs under a storm of faults, and the site that they fetch."""

    site: Site
    crawl_id: str | None = None
    asleep: bool = False  # paused by a user
    seen: int = 0

    def let_move(self, pages: int) -> None:
        """Answer this many more pages; further requests wait, and their workers may die while waiting."""
        self.seen = self.site.pages_answered
        self.site.allowed = self.seen + pages

    def has_moved(self) -> bool:
        answered = self.site.pages_answered
        return self.asleep or answered > self.seen or answered == len(self.site.urls)


@dataclass
class Storm:
    """Faults during a crawl: for example twenty kills, a pause and a resume by a user, and a clock that is set wrong by
    an hour and corrected, forward and back."""

    fleet: Fleet
    controller: Shoal
    workers: Sequence[Shoal]
    works: Sequence[Work]
    seed: int
    clock: SettableClock
    postgres: PostgresServer | None = None
    struck: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)

    def plan(self, strikes: int) -> list[str]:
        """Everything happens at least once, and the long outage exactly once."""
        sure = ["child", "child", "controller", "worker", "sleep"]
        often = ["child", "child", "controller", "worker", "worker"]
        if self.postgres is not None:
            sure += ["backends", "restart", "crash", "outage"]
            often += ["backends", "restart"]
        names = sure + self._dice.choices(often, k=strikes + 1 - len(sure))
        self._dice.shuffle(names)
        names.insert(names.index("sleep") + 1 + LONGEST_SLEEP, "wake")
        first = self._dice.choice([-HOUR, HOUR])
        places = sorted(self._dice.sample(range(len(names)), 2), reverse=True)
        for place, step in zip(places, (-first, first), strict=True):
            names.insert(place, f"clock {step:+d}")
        return names

    def rage(self, strikes: int) -> None:
        """Every site has enough pages for all kills, so that no kill comes after the work is done."""
        names = self.plan(strikes)
        for name in names:
            for work in self.works:
                work.let_move(max(1, len(work.site.urls) * 8 // 10 // len(names)))
            wait_for(self._has_moved, "a new page of every crawl", seen=lambda: f"struck: {self.struck}")
            time.sleep(self._dice.uniform(0, LONGEST_PAUSE))
            self._carry_out(name)
        for work in self.works:
            work.site.allowed = None

    def _has_moved(self) -> bool:
        self.start_again()
        return all(work.has_moved() for work in self.works)

    def start_again(self) -> None:
        """Restart processes as a supervisor does: those that found no store at start-up have exited with an error."""
        for member in (self.controller, *self.workers):
            if not member.alive:
                assert member.wait() == NO_STORE, f"{member.name} ended with {member.wait()}"
                member.start()

    def _carry_out(self, name: str) -> None:
        acts: dict[str, Callable[[], None]] = {
            "child": self._kill_child,
            "worker": lambda: self._kill(self._any_worker()),
            "controller": lambda: self._kill(self.controller),
            "backends": self._end_backends,
            "restart": lambda: self._server.restart("fast"),
            "crash": lambda: self._server.restart("immediate"),
            "outage": self._be_away,
            "sleep": lambda: self._put_to_sleep(self._dice.choice([work for work in self.works if work.crawl_id])),
            "wake": self._wake_all,
            f"clock {HOUR:+d}": lambda: self.clock.step(HOUR),
            f"clock {-HOUR:+d}": lambda: self.clock.step(-HOUR),
        }
        acts[name]()
        if name in STRIKES:
            self.struck.append(name)

    def _kill_child(self) -> None:
        wait_for(lambda: any(worker.children() for worker in self.workers), "a child of any worker")
        children = [child for worker in self.workers for child in worker.children()]
        send_all([self._dice.choice(children)] if children else [], signal.SIGKILL)

    def _any_worker(self) -> Shoal:
        return self._dice.choice(self.workers)

    def _kill(self, member: Shoal) -> None:
        member.kill()
        member.start()

    def _end_backends(self) -> None:
        ask_postgres(self._server.url, END_ALL_BACKENDS)

    def _be_away(self) -> None:
        self._server.stop("immediate")
        time.sleep(OUTAGE_SECONDS)
        self._server.start()

    def _put_to_sleep(self, work: Work) -> None:
        work.asleep = self._wish(work, "pause", ("pausing", "paused"))

    def _wake_all(self) -> None:
        for work in self.works:
            if work.asleep:
                self._wake(work)

    def _wake(self, work: Work) -> None:
        assert work.crawl_id is not None
        self.fleet.wait_for_state(work.crawl_id, "paused", "completed", "failed")
        self._wish(work, "resume", ("queued", "running", "completed"))
        work.asleep = False

    def _wish(self, work: Work, verb: str, states: tuple[str, ...]) -> bool:
        """Repeat a request until a controller has accepted it; return whether it succeeded."""
        crawl_id = work.crawl_id or ""
        wait_for(lambda: self.fleet.ask_for(crawl_id, verb) is not None, f"an answer to {verb}")
        return self.fleet.crawl(crawl_id)["state"] in states

    @property
    def _server(self) -> PostgresServer:
        assert self.postgres is not None
        return self.postgres
