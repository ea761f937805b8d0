"""Crawls and their politeness receipts."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Self

from msgspec import UNSET, UnsetType, convert, field

from shoal.access.token import TokenScope
from shoal.base.clock import from_micros, moment
from shoal.base.request_form import describe
from shoal.base.text import message
from shoal.crawl import politeness
from shoal.crawl.crawl import shown_config
from shoal.crawl.lifecycle import failed_urls
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.states import CrawlState
from shoal.hosts import rate
from shoal.hosts.robots import RobotsState
from shoal.serve.resources.resource import CrawlError, Moment, NextPage, Resource, Verb


class Responses(Resource, kw_only=True):
    """Final statuses of URLs, after redirects and retries. The first four add up to `pages`."""

    success: Annotated[int, describe("2xx responses.")] = field(name="2xx")
    redirect: Annotated[int, describe("3xx responses: not modified, or a redirect without a usable target.")] = field(
        name="3xx"
    )
    client_error: Annotated[int, describe("4xx responses.")] = field(name="4xx")
    server_error: Annotated[int, describe("5xx responses.")] = field(name="5xx")
    none: Annotated[int, describe("No HTTP response: the connection failed, or robots.txt could not be fetched.")]


class Crawl(Resource, kw_only=True):
    """A crawl and its progress so far."""

    id: Annotated[str, describe("Id of the crawl.")]
    state: CrawlState
    state_reason: Annotated[
        str | None, describe("Why the crawl is in this state, such as drained, drained_partly or max_pages.")
    ]
    seeds: Annotated[list[str], describe("URLs that the crawl started from.")]
    project: str
    labels: dict[str, str]
    priority: int
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    records: Annotated[
        int, describe("Number of page records: one per page, and one per error without a response (`responses.none`).")
    ]
    pages: Annotated[int, describe("URLs that returned an HTTP response.")]
    errors: Annotated[int, describe("URLs that returned no response, or a response that cannot be used.")]
    responses: Annotated[Responses, describe("Pages by HTTP status class.")]
    queued: Annotated[int, describe("URLs that are waiting or being fetched.")]
    skipped: Annotated[
        dict[str, int], describe("Number of URLs that were not requested, by reason; `trap` counts quarantined URLs.")
    ]
    bytes: Annotated[int, describe("Bytes received.")]
    not_modified: Annotated[int, describe("Pages that a server reported as unchanged (304).")]
    bytes_saved: Annotated[int, describe("Bytes not transferred because pages were unchanged.")]
    stayed_empty: Annotated[int, describe("Rendered pages that stayed empty: no links, and hardly any words.")]
    depth_reached: Annotated[int, describe("Largest `depth` of a page of the crawl.")]
    worked_seconds: Annotated[
        float, describe("Time during which workers ran this crawl; time in which several workers ran it counts once.")
    ]
    config: Annotated[dict[str, Any], describe("Options of the crawl; secrets are masked.", title="Options")]
    node_ids: Annotated[list[str], describe("Nodes that are running the crawl now.")]
    error: Annotated[CrawlError | None, describe("Why the crawl failed, if it did.")]

    example: ClassVar = {
        "id": "crl_01hr2v8k3m4n5p6q",
        "state": "running",
        "state_reason": None,
        "seeds": ["https://example.com/"],
        "project": "default",
        "labels": {"team": "search"},
        "priority": 50,
        "created_at": "2026-03-01T09:00:00Z",
        "started_at": "2026-03-01T09:00:01Z",
        "finished_at": None,
        "records": 122,
        "pages": 120,
        "errors": 2,
        "responses": {"2xx": 112, "3xx": 0, "4xx": 7, "5xx": 1, "none": 2},
        "queued": 380,
        "skipped": {"robots": 4},
        "bytes": 2460000,
        "not_modified": 0,
        "bytes_saved": 0,
        "stayed_empty": 0,
        "depth_reached": 2,
        "worked_seconds": 61.2,
        "config": {"depth": 2, "max_pages": 500, "speed": "normal"},
        "node_ids": ["crawler-1"],
        "error": None,
    }

    @classmethod
    def of(cls, status: CrawlStatus, **more: Any) -> Self:
        crawl, counts = status.crawl, status.counts
        failed = crawl.state is CrawlState.FAILED
        return super().of(
            crawl,
            counts,
            seeds=crawl.config.seeds,
            labels=crawl.config.labels,
            responses=convert(counts.responses, Responses),
            worked_seconds=round(counts.walked.total_seconds(), 3),
            config=shown_config(crawl.config),
            node_ids=list(status.node_ids),
            error=CrawlError(code=crawl.state_reason, message=status.error_message) if failed else None,
            **more,
        )


NEW_CRAWL = Crawl.example | {
    "state": "queued",
    "started_at": None,
    "records": 0,
    "pages": 0,
    "errors": 0,
    "responses": {"2xx": 0, "3xx": 0, "4xx": 0, "5xx": 0, "none": 0},
    "queued": 1,
    "skipped": {},
    "bytes": 0,
    "depth_reached": 0,
    "worked_seconds": 0.0,
    "node_ids": [],
}


class CrawlList(Resource, kw_only=True):
    items: list[Crawl]
    next: NextPage

    example: ClassVar = {"items": [Crawl.example], "next": "MTI"}


class HeldHost(Resource, kw_only=True):
    """A host that receives no requests for a while."""

    origin: Annotated[str, describe("Scheme, host and port.")]
    held_until: Annotated[Moment, describe("No request is sent before this time.")]
    status: Annotated[int, describe("The HTTP status that caused the pause.")]

    example: ClassVar = {"origin": "https://example.com", "held_until": "2026-03-01T09:05:00Z", "status": 429}

    @classmethod
    def of(cls, host: rate.HeldHost) -> Self:
        return super().of(host, held_until=from_micros(host.until))


class FailedSeed(Resource, kw_only=True):
    """A seed that returned no page."""

    url: Annotated[str, describe("The seed.")]
    status: Annotated[int | None, describe("HTTP status of the last response; null if there was none.")]
    error: Annotated[CrawlError | None, describe("Why there was no response.")]

    @classmethod
    def of(cls, seed: failed_urls.FailedSeed) -> Self:
        code, message = seed.error_code, seed.error_message or ""
        return super().of(seed, error=None if code is None else CrawlError(code=code, message=message))


class CrawlDetail(Crawl, kw_only=True):
    """A crawl with the hosts it is waiting for and the seeds that failed."""

    held_hosts: Annotated[
        list[HeldHost],
        describe("Hosts that asked for a pause (429 or 503), if URLs of this crawl are waiting for them."),
    ]
    failed_seeds: Annotated[
        list[FailedSeed],
        describe(
            "All seeds, if the crawl has ended and every seed failed with 4xx, 5xx or no response; otherwise empty."
        ),
    ]
    dead_seeds: Annotated[
        list[FailedSeed],
        describe(
            "The seeds that failed or were skipped, if the crawl has ended and at least one seed returned a page. "
            "Only the first 1,000 seeds are checked."
        ),
    ]

    example: ClassVar = Crawl.example | {"held_hosts": [HeldHost.example], "failed_seeds": [], "dead_seeds": []}

    @classmethod
    def with_hosts(cls, status: CrawlStatus, held: Sequence[rate.HeldHost]) -> Self:
        return cls.of(
            status,
            held_hosts=[HeldHost.of(host) for host in held],
            failed_seeds=[FailedSeed.of(seed) for seed in status.failed_seeds],
            dead_seeds=[FailedSeed.of(seed) for seed in status.dead_seeds],
        )


class CrawlRetried(Crawl, kw_only=True):
    """A crawl after a retry."""

    retried: Annotated[
        int | UnsetType, describe("Number of failed URLs that will be fetched again, if the request selected URLs.")
    ] = UNSET

    example: ClassVar = Crawl.example | {"state": "queued", "node_ids": [], "retried": 12}


class CrawlRemoval(Resource, kw_only=True):
    """A crawl removal that is still in progress."""

    crawl_id: str
    removed: Annotated[int, describe("Number of rows removed so far.")]


class HostPoliteness(Resource, kw_only=True):
    """How one host was treated. Delays are seconds between two requests."""

    origin: Annotated[str, describe("Scheme, host and port.")]
    pages: Annotated[int, describe("Pages fetched from the host.")]
    requests_per_second: Annotated[
        float | None, describe("Pages per second of crawling time; null before the first page.")
    ]
    delay_seconds: Annotated[
        float, describe("Delay between requests: our own or the Crawl-delay of robots.txt, whichever is longer.")
    ]
    robots: Annotated[RobotsState | None, describe("The result of the last request for robots.txt; null if unknown.")]
    robots_hash: Annotated[str | None, describe("Content hash of the robots.txt: its version.")]
    robots_fetched_at: Annotated[Moment | None, describe("When the robots.txt was last fetched.")]
    crawl_delay_asked: Annotated[float | None, describe("The `Crawl-delay` in robots.txt.")]
    crawl_delay_honoured: Annotated[
        float, describe("The crawl delay that is applied: the `Crawl-delay` in robots.txt, up to the maximum.")
    ]
    crawl_delay_clamped: Annotated[bool, describe("Whether the `Crawl-delay` is longer than the maximum.")]
    holds: Annotated[dict[str, int], describe("How many times the host asked for a pause, by response status.")]
    hold_seconds: Annotated[float, describe("Total duration of these pauses.")]
    held_until: Annotated[
        Moment | None, describe("No request is sent to the host before this time; null if it is not paused.")
    ]

    @classmethod
    def of(cls, receipt: politeness.HostReceipt) -> Self:
        host, rate = receipt.host, receipt.requests_per_second
        return super().of(
            host,
            requests_per_second=None if rate is None else round(rate, 3),
            delay_seconds=receipt.effective_delay,
            robots=None if host.robots is None else host.robots.state,
            robots_fetched_at=moment(host.robots_at),
            crawl_delay_asked=receipt.asked_delay_seconds,
            crawl_delay_honoured=receipt.honoured_delay_seconds,
            crawl_delay_clamped=receipt.delay_was_clamped,
            holds={str(status): count for status, count in receipt.holds.statuses.items()},
            hold_seconds=round(receipt.holds.seconds, 3),
            held_until=from_micros(host.held_until) if host.state.held_seconds else None,
        )


class PolitenessReceipt(Resource, kw_only=True):
    """How a crawl treated its hosts. Hosts with the most pages come first."""

    crawl_id: str
    obeys_robots: Annotated[bool, describe("Whether the crawl obeys robots.txt.")]
    user_agent: Annotated[str, describe("User-Agent header that the crawl sends.")]
    connections_per_host: Annotated[int, describe("Concurrent requests to one host.")]
    delay_seconds: Annotated[float, describe("Our own delay between requests to one host.")]
    hosts: Annotated[list[HostPoliteness], describe("Hosts of the crawl, max 200.")]
    more_hosts: Annotated[bool, describe("Whether the crawl has more hosts than are listed.")]

    example: ClassVar = {
        "crawl_id": Crawl.example["id"],
        "obeys_robots": True,
        "user_agent": "Shoal/0.1",
        "connections_per_host": 2,
        "delay_seconds": 1.0,
        "hosts": [
            {
                "origin": "https://example.com",
                "pages": 1200,
                "requests_per_second": 0.5,
                "delay_seconds": 2.0,
                "robots": "found",
                "robots_hash": "9f86d081884c7d65",
                "robots_fetched_at": "2026-03-01T09:00:00Z",
                "crawl_delay_asked": 2.0,
                "crawl_delay_honoured": 2.0,
                "crawl_delay_clamped": False,
                "holds": {"429": 1},
                "hold_seconds": 30.0,
                "held_until": None,
            }
        ],
        "more_hosts": False,
    }

    @classmethod
    def of(cls, receipt: politeness.PolitenessReceipt) -> Self:
        return super().of(
            receipt,
            crawl_id=receipt.status.crawl.id,
            connections_per_host=receipt.connections,
            delay_seconds=receipt.own_delay_seconds,
            hosts=[HostPoliteness.of(one) for one in receipt.hosts],
            more_hosts=receipt.is_cut,
        )


VERBS: Final[Mapping[str, Verb]] = {
    "start": Verb(message("Start"), message("The crawl is queued.")),
    "pause": Verb(message("Pause"), message("The crawl is being paused; pages in flight are finished first.")),
    "resume": Verb(message("Resume"), message("The crawl is queued again.")),
    "retry": Verb(message("Continue"), message("The crawl is queued again.")),
    "stop": Verb(
        message("Stop"),
        message("The crawl is being stopped; pages in flight are finished first."),
        message("Stop this crawl permanently?"),
        message("Pages that were fetched are kept. A stopped crawl cannot be resumed."),
    ),
    "force": Verb(
        message("Stop by force"),
        message("The crawl is being stopped; workers that do not stop in time are killed."),
        message("Stop this crawl by force?"),
        message("Workers that have not stopped after the grace period are killed. Their pages in flight are lost."),
    ),
    "remove": Verb(
        message("Remove"),
        message("The crawl was removed."),
        message("Remove this crawl with its pages?"),
        message("Pages, URLs and stored bodies are deleted. This cannot be undone."),
        TokenScope.ADMIN,
    ),
}
