"""Work and faults for two controllers and two workers: what is under way, and what may happen to them."""

import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from tests.support import ledger
from tests.support.control_fleet import TwoControllers
from tests.support.fleet import Shoal, send_all, wait_for
from tests.support.ledger import Expected
from tests.support.site import Site
from tests.support.storm import Work

LEASE_SECONDS = 1.0  # of `fleet.TENTH`
FLAP_SECONDS = 0.1


@dataclass
class Scene:
    """A fleet, and a site that answers nothing until it is told to."""

    fleet: TwoControllers
    site: Site
    groups: list[str] = field(default_factory=list)

    def fetch(self, first: int, count: int) -> str:
        """Make page jobs for some pages of the site, at the controller that is asked, as soon as it takes them."""
        urls, made = [self.site.url(number) for number in range(first, first + count)], list[str]()

        def is_taken() -> bool:
            answer = self.fleet.try_post("/api/v1/jobs", urls=urls)
            made.extend([answer["id"]] if answer else [])
            return bool(made)

        wait_for(is_taken, "a controller that holds nothing back")
        self.groups += made
        return made[0]

    def held_by(self, name: str) -> int:
        """Return how many page jobs a worker holds."""
        holders = ledger.holders(self.fleet.store_url, "page").values()
        return sum(holder.startswith(f"{name}/") for holder in holders)

    def wait_until_both_work(self) -> None:
        for worker in self.fleet.workers:
            wait_for(partial(self._has_work, worker.name), f"page jobs of {worker.name}")

    def _has_work(self, name: str) -> bool:
        return self.held_by(name) >= 1

    def finish(self) -> None:
        """Let everything end: each page job is done once, and no attempt was counted."""
        self.site.allowed = None
        for group in self.groups:
            wait_for(partial(self._has_ended, group), "the end of the page jobs")
            shown = self.fleet.group(group)
            assert shown["jobs"] == {"done": shown["total"]}
        wait_for(lambda: not ledger.open_jobs(self.fleet.store_url), "the end of all jobs")
        self.check()

    def _has_ended(self, group: str) -> bool:
        return bool(self.fleet.group(group)["state"] == "completed")

    def check(self) -> None:
        found = ledger.check_jobs(self.fleet.store_url)
        assert not found, "\n".join(found)


class FleetStorm:
    """Random but repeatable faults for two controllers and two workers under load. After each of them the ledger must
    hold, and the work must move on."""

    def __init__(
        self, scene: Scene, crawl: Work, seed: int, more: Mapping[str, Callable[[int], None]] | None = None
    ) -> None:
        """`more`: further faults, by name."""
        self._scene = scene
        self._fleet = scene.fleet
        self._crawl = crawl
        self._dice = random.Random(seed)
        self.struck: list[str] = []
        self._faults: dict[str, Callable[[int], None]] = {
            "worker killed": lambda place: self._kill(self._fleet.workers[place]),
            "worker asleep": self._sleep,
            "child killed": self._kill_child,
            "controller killed": lambda place: self._kill(self._fleet.controllers[place]),
            "cut off": self._cut,
            "flapping": self._flap,
            "drained": self._drain,
            **(more or {}),
        }

    def rage(self, faults: int) -> None:
        """Strike; everything happens at least once."""
        names = [*self._faults, *self._dice.choices(list(self._faults), k=faults - len(self._faults))]
        self._dice.shuffle(names)
        for number, name in enumerate(names):
            self._crawl.let_move(max(1, len(self._crawl.site.urls) * 8 // 10 // faults))
            self._scene.fetch(5 * number, 5)
            place = self._dice.randrange(2)
            self._faults[name](place)
            self.struck.append(f"{name} {place + 1}")
            wait_for(self._crawl.has_moved, "new pages of the crawl", seen=lambda: str(self.struck))
            self._scene.check()
            found = ledger.check(self._fleet.store_url, self._crawl.crawl_id or "", Expected(state="running"))
            assert not found, "\n".join([*found, *self.struck])
        self._crawl.site.allowed = None

    def _kill(self, member: Shoal) -> None:
        member.kill()
        member.start()

    def _kill_child(self, place: int) -> None:
        send_all(self._fleet.workers[place].children()[:1], signal.SIGKILL)

    def _sleep(self, place: int) -> None:
        send_all(self._fleet.workers[place].family(), signal.SIGSTOP)
        time.sleep(3 * LEASE_SECONDS)
        send_all(self._fleet.workers[place].family(), signal.SIGCONT)

    def _cut(self, place: int) -> None:
        self._fleet.proxies[place].cut()
        time.sleep(LEASE_SECONDS)
        self._fleet.move_proxy(place, self._dice.randrange(2))
        self._fleet.proxies[place].mend()

    def _flap(self, place: int) -> None:
        for _ in range(5):
            self._fleet.proxies[place].reset()
            time.sleep(FLAP_SECONDS)

    def _drain(self, place: int) -> None:
        """Drain a node through whichever controller answers, and let it work again."""
        path, controllers = f"/api/v1/nodes/worker-{place + 1}/commands", self._dice.sample((0, 1), 2)
        for name in ("drain", "resume"):
            wait_for(partial(self._is_given, path, name, controllers), f"a controller that takes {name}")

    def _is_given(self, path: str, name: str, controllers: list[int]) -> bool:
        for number in controllers:
            self._fleet.ask(number)
            if self._fleet.try_post(path, command=name) is not None:
                return True
        return False
