"""The politeness receipt of a crawl. For each host, it shows the request rate, the delay in its robots.txt, whether
that delay was honoured, and how many times the host asked us to wait."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from shoal.base.database import Database
from shoal.base.settings import Settings
from shoal.crawl.crawl import Crawl
from shoal.crawl.engine.fetch_window import window_and_rate
from shoal.crawl.frontier.admin_store import CrawlHost, FrontierAdminStore
from shoal.crawl.journal import MOST_AT_ONCE
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.store import ByDriver
from shoal.hosts.robots import RobotsState, Rules

MOST_HOSTS: Final = 200
HELD: Final = "host_held"  # the event in the journal


@dataclass(frozen=True, slots=True)
class HostHolds:
    """The number of times a host asked us to wait during the crawl, by response status, and the total waiting time."""

    statuses: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.statuses.values())


@dataclass(frozen=True, slots=True)
class HostReceipt:
    """The receipt of one host. A delay is the time between two requests. `asked_delay_seconds` is the delay in
    robots.txt."""

    host: CrawlHost
    requests_per_second: float | None
    own_delay_seconds: float
    asked_delay_seconds: float | None
    honoured_delay_seconds: float
    delay_was_clamped: bool
    holds: HostHolds

    @property
    def effective_delay(self) -> float:
        return max(self.own_delay_seconds, self.honoured_delay_seconds)


@dataclass(frozen=True, slots=True)
class PolitenessReceipt:
    """The receipt of a crawl. The hosts with most pages come first."""

    status: CrawlStatus
    obeys_robots: bool
    user_agent: str
    connections: int  # per host
    own_delay_seconds: float
    hosts: list[HostReceipt]
    is_cut: bool  # True if the crawl has more hosts than the receipt


class Politeness:
    """Makes receipts from the stored hosts, their robots.txt rules and the journal."""

    def __init__(
        self, database: Database, crawls: Crawls, frontiers: ByDriver[FrontierAdminStore], settings: Settings
    ) -> None:
        self._database = database
        self._crawls = crawls
        self._frontiers = frontiers
        self._settings = settings

    async def receipt(self, crawl_id: str, most: int = MOST_HOSTS) -> PolitenessReceipt:
        status = await self._crawls.get(crawl_id)
        crawl = status.crawl
        hosts = await self._database.read(lambda tx: self._frontiers.of(crawl).hosts(tx, crawl.number, most + 1))
        holds = await self._holds(crawl_id)
        size, rate = window_and_rate(crawl, self._settings)
        agent = crawl.config.user_agent or self._settings.egress.user_agent
        worked, own = status.counts.walked.total_seconds(), rate.delay_seconds
        obeys = crawl.config.robots == "obey"
        return PolitenessReceipt(
            status=status,
            obeys_robots=obeys,
            user_agent=agent,
            connections=size.per_host,
            own_delay_seconds=own,
            hosts=[
                self._host(host, agent if obeys else None, worked, own, holds.get(host.origin, HostHolds()))
                for host in hosts[:most]
            ],
            is_cut=len(hosts) > most,
        )

    async def robots_rules(self, crawl: Crawl, most: int = MOST_HOSTS) -> dict[str, Rules]:
        """Return the current robots.txt rules of each host of a crawl, by host origin."""
        hosts = await self._database.read(lambda tx: self._frontiers.of(crawl).hosts(tx, crawl.number, most))
        agent = crawl.config.user_agent or self._settings.egress.user_agent
        return {host.origin: rules for host in hosts if (rules := self._rules(host, agent)) is not None}

    def _rules(self, host: CrawlHost, agent: str) -> Rules | None:
        if host.robots is None or host.robots.state is not RobotsState.FOUND:
            return None
        return Rules(host.robots, agent, self._settings.hosts.longest_crawl_delay)

    def _host(self, host: CrawlHost, agent: str | None, worked: float, own: float, holds: HostHolds) -> HostReceipt:
        rules = None if agent is None else self._rules(host, agent)
        return HostReceipt(
            host=host,
            requests_per_second=host.pages / worked if worked else None,
            own_delay_seconds=own,
            asked_delay_seconds=None if rules is None else rules.asked_delay_seconds,
            honoured_delay_seconds=0.0 if rules is None else rules.delay.total_seconds(),
            delay_was_clamped=rules is not None and rules.delay_was_cut,
            holds=holds,
        )

    async def _holds(self, crawl_id: str) -> dict[str, HostHolds]:
        """Return the holds in the journal, by host. Holds in dropped journal entries are missing."""
        statuses: dict[str, Counter[int]] = {}
        seconds: Counter[str] = Counter()
        after = 0
        while True:
            entries = await self._crawls.journal.entries(crawl_id, after, MOST_AT_ONCE)
            for stored in entries:
                if stored.entry.event == HELD:
                    facts = stored.entry.facts
                    statuses.setdefault(facts["host"], Counter())[facts["status"]] += 1
                    seconds[facts["host"]] += facts["seconds"]
            if len(entries) < MOST_AT_ONCE:
                break
            after = entries[-1].number
        return {host: HostHolds(dict(counts), float(seconds[host])) for host, counts in statuses.items()}
