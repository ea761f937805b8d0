"""Sends every outgoing request: resolves the host, applies the SSRF rules, and passes it to the transport.

The transport enforces limits, and the module `redirect` follows redirects. Callers handle rate limits, robots.txt and
retries.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from shoal.base.clock import Clock, SystemClock
from shoal.base.url import Url, UrlRefusal, origin
from shoal.egress.address import AddressRule, Proxy, Route, endpoint, literal, pin
from shoal.egress.exchange import LATE, Failure, Limits, Outcome, Request
from shoal.egress.redirect import URLS, AtHop, Cancellable, Done, RedirectFollower
from shoal.egress.resolver import Answer, Resolver

if TYPE_CHECKING:
    from shoal.egress.curl_handle import CurlHandle

_ROUTE_SECONDS: Final = 60.0
_MOST_ROUTES: Final = 10_000
_MOST_ADDRESSES: Final = 8


class Egress:
    """The outgoing requests of one component: a crawl, the courier, the client of the render service.

    `done` is called exactly once per request, from the event loop, never from inside `submit`, `follow` or
    `cancel`. The public message of a failure does not say why an address was refused: only `operator_detail` names the
    address.
    """

    def __init__(
        self,
        rule: AddressRule,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        *,
        clock: Clock | None = None,
        resolver: Resolver | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        from shoal.egress.transport import Transport  # a process without an egress does not load libcurl

        self.rule = rule
        self.limits = limits
        self._clock = clock or SystemClock()
        self._resolver = resolver or Resolver(self._clock, timeout=limits.connect_timeout)
        self.proxy = proxy
        self._routes: dict[str, Route] = {}
        self._waiting: set[Exchange] = set()
        self._is_closed = False
        self._transport = Transport(proxy)

    def submit(self, request: Request, done: Done) -> "Exchange":
        """Send one request without following redirects."""
        exchange = Exchange(self, request, done, request.limits or self.limits)
        url = request.url
        slash = url.find("/", 8)
        route = self._routes.get(url[:slash]) if slash > 0 else None
        if route is not None and route.expires_at > self._clock.monotonic():
            exchange.route = route
            self._transport.start(exchange)
        else:
            self._admit(exchange)
        return exchange

    def follow(self, request: Request, done: Done, at_hop: AtHop | None = None) -> Cancellable:
        """Send a request and follow its redirects; the outcome contains the chain."""
        return RedirectFollower(
            request,
            done,
            send=self.submit,
            limits=request.limits or self.limits,
            clock=self._clock,
            at_hop=at_hop,
        )

    async def fetch(self, request: Request, *, redirects: bool = False, at_hop: AtHop | None = None) -> Outcome:
        """Await the outcome of `submit`, or of `follow` if `redirects` is true."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        send = partial(self.follow, at_hop=at_hop) if redirects else self.submit
        handle = send(request, partial(_resolve, future))
        try:
            return await future
        finally:
            handle.cancel()

    def close(self) -> None:
        """Close every connection; requests in flight and later ones end as `cancelled`."""
        self._is_closed = True
        self._routes.clear()
        in_flight = [*self._waiting, *self._transport.transfers()]
        self._resolver.close()
        self._transport.close()
        for exchange in in_flight:
            exchange.finish(_cancelled(exchange.url))

    # From a URL to a route

    def _admit(self, exchange: "Exchange") -> None:
        if self._is_closed:
            exchange.finish_soon(_cancelled(exchange.url))
            return
        url = URLS.canonical(exchange.request.url)
        if isinstance(url, UrlRefusal):
            exchange.finish_soon(Failure(url.code, f"The address {url.problem}.", retryable=False, url=exchange.url))
            return
        exchange.url = url
        self._waiting.add(exchange)
        host, port = endpoint(url)
        self._locate(host, partial(self._judge_target, exchange, host, port))

    def _locate(self, host: str, then: Callable[[Answer], None]) -> None:
        spelled = literal(host)
        if spelled is not None:
            then((str(spelled),))
        else:
            self._resolver.resolve(host, then)

    def _judge_target(self, exchange: "Exchange", host: str, port: int, answer: Answer) -> None:
        route = self._checked(exchange, self.rule, host, port, answer)
        if route is None:
            return
        if self.proxy is None:
            self._depart(exchange, route)
        else:
            self._locate(self.proxy.host, partial(self._judge_proxy, exchange, self.proxy, route))

    def _judge_proxy(self, exchange: "Exchange", proxy: Proxy, target: Route, answer: Answer) -> None:
        route = self._checked(exchange, proxy.rule, proxy.host, proxy.port, answer)
        if route is not None:
            self._depart(exchange, replace(route, pins=target.pins + route.pins, expires_at=target.expires_at))

    def _checked(self, exchange: "Exchange", rule: AddressRule, host: str, port: int, answer: Answer) -> Route | None:
        """Return the route to a host with these addresses, or reject the exchange. A single refused address is
        enough."""
        if isinstance(answer, Failure):
            exchange.finish_soon(replace(answer, url=exchange.url))
            return None
        refusal = next((refusal for ip in answer if (refusal := rule.judge(ip, port, host))), None)
        if refusal is not None:
            from shoal.egress.curl import refused

            exchange.finish_soon(refused(refusal, exchange.url))
            return None
        addresses = answer[:_MOST_ADDRESSES]
        pins = [] if literal(host) else [pin(host, port, addresses)]
        return Route(host, port, addresses, rule, self._clock.monotonic() + _ROUTE_SECONDS, pins)

    def _depart(self, exchange: "Exchange", route: Route) -> None:
        if len(self._routes) >= _MOST_ROUTES:
            self._routes.clear()
        self._routes[origin(Url(exchange.url))] = route
        if exchange not in self._waiting:
            return
        if self._clock.monotonic() > exchange.request.send_by:  # looking up the name took too long
            exchange.finish_soon(Failure(LATE, "The slot of the host has passed.", retryable=True, url=exchange.url))
            return
        self._waiting.discard(exchange)
        exchange.route = route
        self._transport.start(exchange)

    # Called by exchanges

    def drop(self, exchange: "Exchange") -> None:
        """Stop an exchange at any stage."""
        self._waiting.discard(exchange)
        self._transport.stop(exchange)


class Exchange:
    """One request in flight; the handle that `submit` returns."""

    __slots__ = ("_done", "_egress", "curl_handle", "limits", "request", "route", "url")

    route: Route

    def __init__(self, egress: Egress, request: Request, done: Done, limits: Limits) -> None:
        self._egress = egress
        self._done: Done | None = done
        self.request = request
        self.url = request.url
        self.limits = limits
        self.curl_handle: CurlHandle | None = None

    def cancel(self) -> None:
        """End the request with the failure `cancelled`, unless it has already ended."""
        if self._done is not None:
            self.finish_soon(_cancelled(self.url))

    def finish_soon(self, outcome: Outcome) -> None:
        self._egress.drop(self)
        asyncio.get_running_loop().call_soon(self.finish, outcome)

    def finish(self, outcome: Outcome) -> None:
        """Pass the outcome to the caller, but only once."""
        done, self._done = self._done, None
        if done is not None:
            done(outcome)


def _resolve(future: "asyncio.Future[Outcome]", outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)


def _cancelled(url: str) -> Failure:
    return Failure("cancelled", "The request was cancelled.", retryable=True, url=url)
