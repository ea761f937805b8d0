"""Page jobs whose turn has come at their hosts: leased, read, and kept if the host has a slot for them. The others are
put off until it has, so that nothing that stands behind them has to wait. For nodes and for bots alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from msgspec import DecodeError, Struct, ValidationError

from shoal.base.database import Tx
from shoal.base.url import Url, origin
from shoal.hosts.places import Places
from shoal.pages.jobs_store import GroupStore
from shoal.pages.work import PageSpec, PageWork
from shoal.queue import states
from shoal.queue.job import Holder, Lease, Taker
from shoal.queue.queue import Queue
from shoal.queue.states import Move

ROUNDS: Final = 5  # leases of one commit: jobs that are put off must not hide those behind them


@dataclass(frozen=True, slots=True)
class PutOff:
    """A job that was not worked on: its host is not to be asked for so many seconds."""

    holder: Holder
    seconds: float

    @property
    def move(self) -> Move:
        wait = timedelta(seconds=self.seconds)
        return states.put_off(self.holder.job_id, self.holder.epoch, wait, "host_busy")


class Task(Struct, frozen=True):
    """A leased job with what it needs. `start_in`: seconds until its host's slot. Without a host it has no slot: it
    cannot be read, or robots.txt forbids its page."""

    lease: Lease
    work: PageWork | None  # None: this version cannot read it
    host: int = 0
    start_in: float = 0.0
    apart: float = 0.0  # from other requests to its host


@dataclass(slots=True)
class Fitted:
    """What a commit leased and kept."""

    tasks: list[Task] = field(default_factory=list)
    put_off: int = 0


class SlotLeases:
    """Leases only what may be fetched now."""

    def __init__(
        self,
        queue: Queue,
        groups: GroupStore,
        places: Places,
        denies: Callable[[PageWork], bool] = lambda work: False,
    ) -> None:
        self._denies = denies  # what is known to be forbidden by robots.txt: it needs no slot
        self._queue = queue
        self._groups = groups
        self._places = places

    async def fit(self, tx: Tx, taker: Taker, leases: Sequence[Lease], want: int) -> Fitted:
        """Keep those of the jobs leased in this commit that have a slot, put the others off, and lease as many more."""
        fitted = Fitted()
        for rounds_left in reversed(range(ROUNDS)):
            kept, refused = await self._sort(tx, leases)
            fitted.tasks += kept
            fitted.put_off += len(refused)
            if not refused:
                break
            more = want - len(fitted.tasks) if rounds_left else 0
            moves = [one.move for one in refused]
            # We hold rows of hosts, which others need who hold scopes: waiting for scopes would be waiting in a circle.
            later = replace(taker, waits=False)
            leases = (await self._queue.finish_and_lease_in(tx, moves, later, more)).leases
        return fitted

    async def _sort(self, tx: Tx, leases: Sequence[Lease]) -> tuple[list[Task], list[PutOff]]:
        """Those of the jobs whose hosts have a slot for them, and the others."""
        tasks = await self._read(tx, leases)
        kept: list[Task] = []
        real: list[Task] = []
        for task in tasks:
            (kept if task.work is None or self._denies(task.work) else real).append(task)
        refused = []
        places = await self._places.give(tx, [origin(Url(task.work.url)) for task in real if task.work])
        for task, place in zip(real, places, strict=True):
            if place.granted:
                kept.append(Task(task.lease, task.work, place.host, place.seconds, place.apart))
            else:
                refused.append(PutOff(task.lease.holder, place.seconds))
        return kept, refused

    async def _read(self, tx: Tx, leases: Sequence[Lease]) -> list[Task]:
        groups = sorted({lease.run_id for lease in leases if lease.run_id})
        specs = await self._groups.specs(tx, groups) if groups else {}
        return [Task(lease, _work(lease, specs)) for lease in leases]


def _work(lease: Lease, specs: Mapping[str, PageSpec | None]) -> PageWork | None:
    """What a job says itself, and its group for all of them; None if this version cannot read one of the two."""
    try:
        work = PageWork.stored(lease.payload)
    except (ValidationError, DecodeError):
        return None
    if lease.run_id is None or lease.run_id not in specs:
        return work
    spec = specs[lease.run_id]
    return None if spec is None else PageWork(url=work.url, crawl_config=spec.crawl_config, rule_set=spec.rule_set)
