"""REST endpoint for the politeness receipt of a crawl."""

from shoal.access.token import TokenScope
from shoal.base.clock import from_micros, moment
from shoal.base.errors import NotFound
from shoal.crawl.politeness import HostReceipt, Politeness
from shoal.serve import examples, schemas
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint


class PolitenessApi:
    """`/api/v1/crawls/{crawl_id}/politeness`."""

    def __init__(self, politeness: Politeness) -> None:
        self._politeness = politeness

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/politeness",
        scope=TokenScope.READ,
        summary="Show how a crawl treated its hosts: rates, robots.txt, delays and pauses.",
        response=schemas.PolitenessReceipt,
        response_example=examples.POLITENESS,
        problems=[NotFound],
    )
    async def show_politeness(self, request: EndpointRequest[Nothing, Nothing]) -> schemas.PolitenessReceipt:
        """Hosts with most pages come first, at most 200 of them. The pauses are those in the journal of the crawl."""
        crawl_id = request.path_param("crawl_id")
        receipt = await self._politeness.receipt(crawl_id)
        return schemas.PolitenessReceipt(
            crawl_id=crawl_id,
            obeys_robots=receipt.obeys_robots,
            user_agent=receipt.user_agent,
            connections_per_host=receipt.connections,
            delay_seconds=receipt.own_delay,
            hosts=[host_politeness(one) for one in receipt.hosts],
            more_hosts=receipt.is_cut,
        )


def host_politeness(receipt: HostReceipt) -> schemas.HostPoliteness:
    host, rate = receipt.host, receipt.requests_per_second
    return schemas.HostPoliteness(
        origin=host.origin,
        pages=host.pages,
        requests_per_second=None if rate is None else round(rate, 3),
        delay_seconds=receipt.effective_delay,
        robots=None if host.robots is None else host.robots.state,
        robots_hash=host.robots_hash,
        robots_fetched_at=moment(host.robots_at),
        crawl_delay_asked=receipt.asked_delay,
        crawl_delay_honoured=receipt.honoured_delay,
        crawl_delay_clamped=receipt.delay_was_clamped,
        holds={str(status): count for status, count in receipt.holds.statuses.items()},
        hold_seconds=round(receipt.holds.seconds, 3),
        held_until=from_micros(host.held_until) if host.state.held_seconds else None,
    )
