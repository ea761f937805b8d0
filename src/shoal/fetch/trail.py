"""The trail of one fetch: every answer on the way with the request that it answers, for those who keep them."""

from shoal.egress import AtHop, Failure, Request, Response
from shoal.pages.bodies import Captured


class Trail:
    """Sees each redirect, and asks `decide` what follows; knows the request of the last answer."""

    __slots__ = ("_decide", "_hops", "_request")

    def __init__(self, request: Request, decide: AtHop) -> None:
        self._request = request
        self._decide = decide
        self._hops: list[Captured] = []

    def at_hop(self, following: Request, response: Response) -> Request | Failure:
        self._hops.append(Captured(self._request, response))
        decided = self._decide(following, response)
        if not isinstance(decided, Failure):
            self._request = decided
        return decided

    def ending(self, response: Response) -> tuple[Captured, ...]:
        """The last answer first, then those that redirected to it."""
        return (Captured(self._request, response), *self._hops)
