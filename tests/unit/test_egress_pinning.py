"""No connection is made to an address that the address rule has not allowed, whatever DNS answers (B1-B21)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from shoal.base.clock import FakeClock
from shoal.egress import AddressRule, Egress, Endpoint, Failure, Outcome, Request, Resolver, Response, listening
from shoal.egress.address import AddressRefusal, Route
from shoal.egress.curl_handle import CurlHandle
from shoal.egress.exchange import Limits
from shoal.egress.transport import Transport
from tests.support.bad_http_server import BadServer, bad_server, reply

PAGE = b"<p>inside</p>"


class Names:
    """A name server whose answers the test changes."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[str, ...]] = {}
        self.asked: list[str] = []

    def __call__(self, host: str) -> tuple[str, ...]:
        self.asked.append(host)
        return self.answers.get(host, ())


@pytest.fixture
async def server() -> AsyncIterator[BadServer]:
    async with bad_server() as server:
        server.answer("*", reply(200, PAGE))
        yield server


@pytest.fixture
def names() -> Names:
    return Names()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def new_egress(names: Names, clock: FakeClock, *named: Endpoint, rule: AddressRule | None = None) -> Egress:
    return Egress(rule or AddressRule(named=frozenset(named)), clock=clock, resolver=Resolver(clock, lookup=names))


def code_of(outcome: Outcome) -> str:
    assert isinstance(outcome, Failure), outcome
    return outcome.code


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://127.0.0.1:8080/", "address_not_public"),
        ("http://127.1/", "address_not_public"),
        ("http://0x7f.1/", "address_not_public"),
        ("http://[::1]/", "address_not_public"),
        ("http://[::ffff:169.254.169.254]/latest/meta-data/", "address_not_public"),
        ("http://169.254.169.254/latest/meta-data/", "address_not_public"),
        ("http://8.8.8.8:22/", "port_not_allowed"),
        ("http://8.8.8.8:6379@10.0.0.1/", "credentials_in_url"),
        ("http://user:pass@site.test/", "credentials_in_url"),
        ("http://169.254.169.254:8888\\@example.org/", "backslash_in_url"),
        ("file:///etc/passwd", "scheme_not_allowed"),
        ("gopher://127.0.0.1:6379/_x", "scheme_not_allowed"),
        ("ftp://site.test/", "scheme_not_allowed"),
        ("dict://127.0.0.1:11211/", "scheme_not_allowed"),
        ("javascript:alert(1)", "scheme_not_allowed"),
        ("http://site.test:99999/", "invalid_url"),
        ("http://site.test:abc/", "invalid_url"),
        ("http://exa\tmple.org/", "control_characters"),
        ("http://", "invalid_url"),
        ("", "invalid_url"),
        ("//site.test/", "invalid_url"),
        ("http://nobody.test/", "dns_error"),
    ],
)
async def test_a_bad_url_fails_without_a_connection(names: Names, clock: FakeClock, url: str, code: str) -> None:
    egress = new_egress(names, clock)
    outcome = await egress.fetch(Request(url))
    assert code_of(outcome) == code
    egress.close()


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "metadata.google.internal", "rebind.test"])
async def test_a_name_that_leads_inside_is_refused_without_telling_where(
    names: Names, clock: FakeClock, server: BadServer, host: str
) -> None:
    names.answers = dict.fromkeys(["localhost", "metadata.google.internal", "rebind.test"], ("127.0.0.1",))
    egress = new_egress(names, clock)
    failure = await egress.fetch(Request(f"http://{host}:{server.port}/"))
    assert isinstance(failure, Failure)
    assert (failure.code, failure.retryable, failure.is_blocked) == ("address_not_public", False, True)
    assert "127.0.0.1" not in failure.message
    assert "127.0.0.1" in failure.operator_detail
    assert server.connections == 0
    egress.close()


async def test_one_bad_address_among_good_ones_is_enough(names: Names, clock: FakeClock) -> None:
    names.answers["mixed.test"] = ("8.8.8.8", "10.0.0.1")
    egress = new_egress(names, clock)
    assert code_of(await egress.fetch(Request("http://mixed.test/"))) == "address_not_public"
    egress.close()


async def test_a_named_endpoint_is_reached_and_its_neighbour_is_not(
    names: Names, clock: FakeClock, server: BadServer
) -> None:
    names.answers["site.test"] = ("127.0.0.1",)
    async with bad_server() as neighbour:
        egress = new_egress(names, clock, ("site.test", server.port))
        outcome = await egress.fetch(Request(f"http://site.test:{server.port}/"))
        assert isinstance(outcome, Response)
        for url in (f"http://site.test:{neighbour.port}/", f"http://127.0.0.1:{server.port}/"):
            assert code_of(await egress.fetch(Request(url))) == "address_not_public"
        assert neighbour.connections == 0
        egress.close()


async def test_a_named_host_is_matched_in_every_spelling(names: Names, clock: FakeClock, server: BadServer) -> None:
    names.answers["site.test"] = ("127.0.0.1",)
    egress = new_egress(names, clock, ("site.test", server.port), ("127.0.0.1", server.port))
    for host in ("SITE.test", "site.test.", "127.1", "2130706433"):
        assert isinstance(await egress.fetch(Request(f"http://{host}:{server.port}")), Response)
    egress.close()


async def test_the_address_of_the_first_answer_is_dialled_and_no_later_one(
    names: Names, clock: FakeClock, server: BadServer
) -> None:
    names.answers["site.test"] = ("127.0.0.1",)
    egress = new_egress(names, clock, ("site.test", server.port))
    url = f"http://site.test:{server.port}/"
    for _ in range(3):
        assert isinstance(await egress.fetch(Request(url, headers=(("X", "1"),))), Response)
    assert names.asked == ["site.test"]
    assert server.asked[0].headers["host"] == f"site.test:{server.port}"
    egress.close()


async def test_a_name_that_moves_inside_is_judged_again_when_its_answer_is_old(
    names: Names, clock: FakeClock, server: BadServer
) -> None:
    names.answers["site.test"] = ("127.0.0.1",)
    egress = new_egress(names, clock, ("site.test", server.port))
    url = f"http://site.test:{server.port}/"
    assert isinstance(await egress.fetch(Request(url)), Response)
    names.answers["site.test"] = ("169.254.169.254",)
    assert isinstance(await egress.fetch(Request(url)), Response)
    clock.jump(61)
    assert code_of(await egress.fetch(Request(url))) == "address_not_public"
    egress.close()


async def test_an_address_without_a_listener_falls_back_to_the_next(
    names: Names, clock: FakeClock, server: BadServer
) -> None:
    names.answers["site.test"] = ("127.0.0.9", "127.0.0.1")
    egress = new_egress(names, clock, ("site.test", server.port))
    outcome = await egress.fetch(Request(f"http://site.test:{server.port}/"))
    assert isinstance(outcome, Response)
    assert outcome.address == "127.0.0.1"
    egress.close()


async def test_the_own_listening_address_is_refused(names: Names, clock: FakeClock, server: BadServer) -> None:
    rule = AddressRule(named=frozenset({("127.0.0.1", server.port)}), own=listening([("127.0.0.1", server.port)]))
    egress = new_egress(names, clock, rule=rule)
    outcome = await egress.fetch(Request(f"http://127.0.0.1:{server.port}/"))
    assert code_of(outcome) == "self_connection"
    assert server.connections == 0
    egress.close()


class Wanderer:
    """A transfer whose URL does not lead to the addresses of its route."""

    def __init__(self, url: str, route: Route) -> None:
        self.request = Request(url)
        self.url = url
        self.route = route
        self.limits = Limits()
        self.curl_handle: CurlHandle | None = None
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def finish(self, outcome: Outcome) -> None:
        self.outcome.set_result(outcome)


@pytest.mark.parametrize("judged", ["127.0.0.9", "8.8.8.8"])
async def test_an_address_that_was_not_judged_is_refused_when_the_socket_opens(server: BadServer, judged: str) -> None:
    transport = Transport()
    for host in ("127.0.0.1", "localhost"):
        rule = AddressRule(named=frozenset({(host, server.port)}))
        route = Route(host, server.port, (judged,), rule, expires_at=0.0)
        wanderer = Wanderer(f"http://{host}:{server.port}/", route)
        transport.start(wanderer)
        assert code_of(await wanderer.outcome) == "address_not_public"
    assert server.connections == 0
    transport.close()


async def test_a_judged_address_is_judged_once_more_when_the_socket_opens(server: BadServer) -> None:
    transport = Transport()
    route = Route("127.0.0.1", server.port, ("127.0.0.1",), AddressRule(), expires_at=0.0)
    wanderer = Wanderer(f"http://127.0.0.1:{server.port}/", route)
    transport.start(wanderer)
    assert code_of(await wanderer.outcome) == "address_not_public"
    assert server.connections == 0
    transport.close()


def test_another_port_of_a_judged_address_is_no_judged_address() -> None:
    route = Route("site.test", 443, ("8.8.8.8",), AddressRule(), expires_at=0.0)
    assert route.refusal("8.8.8.8", 443) is None
    assert isinstance(route.refusal("8.8.8.8", 80), AddressRefusal)
