"""The janitor of the fleet declares silent nodes lost, moves jobs out of lanes that nobody serves, and deletes old
records. Every controller runs a janitor; each change is a compare-and-set."""

from datetime import timedelta

from shoal.base.clock import Clock
from shoal.base.database.clock import ClockWatch
from shoal.base.errors import StorageFull, TimeError
from shoal.base.service import PassResult
from shoal.fleet.node import MISSED, Node
from shoal.fleet.nodes import BATCH, Nodes

FEW = 3  # if no more nodes than this are lost at the same time, the nodes are assumed to be the cause
FORGET_EVERY_SECONDS = 60.0  # seconds


class FleetJanitor:
    """Declares nodes that missed three heartbeats lost.

    Heartbeats are stored by controllers. After a start, an outage of the store, a pause of this process or a jump of
    the store's clock, missing heartbeats prove nothing about the nodes. So no node is declared lost within `grace`
    after such an event; `grace` is three heartbeats. If more than half of the fleet is silent at the same time, the
    nodes are probably not the cause. In that case, only a tenth of the fleet is declared lost in each pass, so that the
    other nodes can come back.
    """

    name = "fleet janitor"

    def __init__(
        self,
        nodes: Nodes,
        store_clock: ClockWatch,
        clock: Clock,
        *,
        heartbeat_every: timedelta,
        keep_lost: timedelta,
    ) -> None:
        self._nodes = nodes
        self._store_clock = store_clock
        self._clock = clock
        self._grace = MISSED * heartbeat_every.total_seconds()
        self._keep_lost = keep_lost
        self._hold_until = self._now() + self._grace
        self._last_pass: float | None = None
        self._outage = False
        self._forgotten_at = self._now()

    async def run_once(self) -> PassResult:
        began = self._now()
        try:
            overdue = await self._nodes.overdue(BATCH)
            jumped_ago = (await self._store_clock.check()).jumped_ago.total_seconds()
            self._hold_until = max(self._hold_until, began - jumped_ago + self._grace)
            lost = 0 if self._in_grace(began) else await self._lose(overdue)
            returned = await self._nodes.return_lanes()
            await self._nodes.forget_lapses()
            await self._forget()
        except (TimeError, StorageFull):  # other controllers could not store heartbeats either
            self._outage = True
            raise
        done = [(lost, "declared {} nodes lost"), (returned, "returned {} jobs of nodes that lease no jobs")]
        return PassResult(did=", ".join(words.format(count) for count, words in done if count))

    def _in_grace(self, now: float) -> bool:
        last, self._last_pass = self._last_pass, now
        if self._outage or (last is not None and now - last > self._grace):
            self._outage = False
            self._hold_until = max(self._hold_until, now + self._grace)
        return now < self._hold_until

    async def _lose(self, overdue: list[Node]) -> int:
        if not overdue:
            return 0
        fleet = await self._nodes.count()
        if len(overdue) > FEW and 2 * len(overdue) > fleet:
            overdue = overdue[: max(1, fleet // 10)]
        return sum([await self._nodes.lose(node) for node in overdue])

    async def _forget(self) -> None:
        if self._now() < self._forgotten_at + FORGET_EVERY_SECONDS:
            return
        self._forgotten_at = self._now()
        await self._nodes.forget(self._keep_lost)

    def _now(self) -> float:
        """Return the machine's uptime in seconds, including time in sleep mode."""
        return self._clock.uptime() / 1e6


class CommandSender:
    """The chore that sends commands that other controllers stored for this controller's sessions."""

    name = "command sender"

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def run_once(self) -> PassResult:
        await self._nodes.send_waiting()
        return PassResult()
