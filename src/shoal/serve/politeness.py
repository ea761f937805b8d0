"""REST endpoint for the politeness receipt of a crawl."""

from shoal.access.token import TokenScope
from shoal.base.errors import NotFound
from shoal.crawl.politeness import Politeness
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.resources.crawl import PolitenessReceipt


class PolitenessApi:
    """`/api/v1/crawls/{crawl_id}/politeness`."""

    def __init__(self, politeness: Politeness) -> None:
        self._politeness = politeness

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/politeness",
        scope=TokenScope.READ,
        summary="Show how a crawl treated its hosts: rates, robots.txt, delays and pauses.",
        response=PolitenessReceipt,
        problems=[NotFound],
    )
    async def show_politeness(self, request: EndpointRequest[Nothing, Nothing]) -> PolitenessReceipt:
        """Hosts with most pages come first, at most 200 of them. The pauses are those in the journal of the crawl."""
        return PolitenessReceipt.of(await self._politeness.receipt(request.path_param("crawl_id")))
