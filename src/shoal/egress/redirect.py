"""Follows redirects, instead of libcurl, so that the SSRF rules apply to every hop. The egress sends each hop."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final, Protocol

from msgspec.structs import replace

from shoal.base.clock import Clock
from shoal.base.url import Canonicalizer, Url, UrlRefusal, UrlRules, origin
from shoal.egress.exchange import NO_DEADLINE, Failure, HeaderPairs, Hop, Limits, Outcome, Request, Response

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_METHOD_KEPT: Final = frozenset({307, 308})

_CREDENTIALS: Final = frozenset({"authorization", "cookie"})
_ABOUT_BODY: Final = frozenset({"content-type", "content-encoding", "content-language", "content-location"})

Done = Callable[[Outcome], None]
AtHop = Callable[[Request, Response], Request | Failure]
"""A function that receives the next request and the response that led to it. It may change the request (cookies) or
refuse it (scope)."""

PLAIN_URLS: Final = UrlRules(tracking=(), session=())
"""Keeps all query parameters of a redirect target, because a redirect may depend on parameters that a frontier
drops."""
URLS: Final = Canonicalizer(PLAIN_URLS)


class Cancellable(Protocol):
    """A request in flight."""

    def cancel(self) -> None: ...


class RedirectFollower:
    """One request and its redirects. The outcome is the last response, or the failure that stopped the chain."""

    __slots__ = (
        "_at_hop",
        "_clock",
        "_current",
        "_done",
        "_hops",
        "_limits",
        "_request",
        "_send",
        "_started",
    )

    def __init__(
        self,
        request: Request,
        done: Done,
        *,
        send: Callable[[Request, Done], Cancellable],
        limits: Limits,
        clock: Clock,
        at_hop: AtHop | None,
    ) -> None:
        self._request = request
        self._done = done
        self._send = send
        self._limits = limits
        self._clock = clock
        self._at_hop = at_hop
        self._hops: list[tuple[Hop, Request]] = []
        self._started = clock.monotonic()
        self._current = send(request, self._arrived)

    def cancel(self) -> None:
        """End the request with the failure `cancelled`, unless it has already ended."""
        self._current.cancel()

    def _arrived(self, outcome: Outcome) -> None:
        if isinstance(outcome, Response) and outcome.status in REDIRECTS:
            following = self._following(outcome)
            if isinstance(following, Request):
                self._hops.append((Hop(outcome.url, outcome.status), self._request))
                self._request = following
                self._current = self._send(following, self._arrived)
                return
            outcome = following
        if self._hops:
            outcome.redirects = tuple(hop for hop, _ in self._hops)
        self._done(outcome)

    def _following(self, response: Response) -> Request | Outcome:
        """Return the next request, or the outcome if the chain ends here."""
        if not response.headers.get("location"):
            return response
        if len(self._hops) >= self._limits.max_redirects:
            return self._with_hop(endless(response.url), response)
        url = leads_to(response, URLS)
        if url is None:
            return response
        if isinstance(url, Failure):
            return self._with_hop(url, response)
        following = self._with_remaining_time(_redirected(self._request, response, url))
        if self._at_hop is not None:
            decided = self._at_hop(following, response)
            if isinstance(decided, Failure):
                return self._with_hop(decided, response)
            following = decided
        if self._was_asked(following):
            return self._with_hop(circular(response.url), response)
        return following

    def _with_remaining_time(self, request: Request) -> Request:
        """Reduce the timeout to the remaining time: one deadline applies to the whole chain."""
        left = self._limits.total_timeout.total_seconds() - (self._clock.monotonic() - self._started)
        remaining = timedelta(seconds=max(left, 0.001))
        return request._replace(limits=replace(self._limits, total_timeout=remaining))

    def _was_asked(self, request: Request) -> bool:
        asked = (earlier for _, earlier in self._hops)
        return any(
            (earlier.url, earlier.method, earlier.headers) == (request.url, request.method, request.headers)
            for earlier in (*asked, self._request)
        )

    def _with_hop(self, failure: Failure, response: Response) -> Failure:
        self._hops.append((Hop(response.url, response.status), self._request))
        return failure


def leads_to(response: Response, urls: Canonicalizer) -> Url | Failure | None:
    """Return the target of a redirect, a failure if it cannot be followed, or None without a `Location`."""
    location = response.headers.get("location")
    if not location:
        return None
    url = urls.resolve(Url(response.url), [_as_sent(location)])[0]
    if not isinstance(url, UrlRefusal):
        return url
    code = "redirect_scheme" if url is UrlRefusal.SCHEME_NOT_ALLOWED else url.code
    return _stopped(code, response.url, f"The redirect leads to an address that {url.problem}.")


def endless(url: str) -> Failure:
    """Return the failure for a chain that exceeds the maximum number of redirects at this URL."""
    return _stopped("too_many_redirects", url, "There are too many redirects.")


def circular(url: str) -> Failure:
    """Return the failure for a chain in which this URL redirects to an earlier request of the chain."""
    return _stopped("redirect_loop", url, "The redirects form a loop.")


def _stopped(code: str, url: str, message: str) -> Failure:
    return Failure(code, message, retryable=False, url=url)


def _redirected(request: Request, response: Response, url: Url) -> Request:
    method, headers, body = request.method, request.headers, request.body
    if response.status not in _METHOD_KEPT and method not in ("GET", "HEAD"):
        method, headers, body = "GET", _without(headers, _ABOUT_BODY), b""
    if origin(url) != origin(Url(response.url)):
        request = request._replace(signer=None)
        headers = _without(headers, _CREDENTIALS)
    return request._replace(url=url, method=method, headers=headers, body=body, send_by=NO_DEADLINE)


def _without(headers: HeaderPairs, names: frozenset[str]) -> HeaderPairs:
    kept = tuple(pair for pair in headers if pair[0].lower() not in names)
    return headers if len(kept) == len(headers) else kept


def _as_sent(location: str) -> str:
    """Decode a `Location` as UTF-8: servers send UTF-8, but headers are read as Latin-1."""
    try:
        return location.encode("latin-1").decode()
    except UnicodeError:
        return location
