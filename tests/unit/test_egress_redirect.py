"""Redirects: each hop is checked, the number is limited, and credentials are not sent to other hosts (B15, B17, B29,
B34, B35)."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.base.clock import SystemClock
from shoal.egress import (
    AddressRule,
    AtHop,
    Egress,
    Failure,
    HeaderPairs,
    Hop,
    Limits,
    Outcome,
    Request,
    Resolver,
    Response,
)
from tests.support.bad_http_server import BadServer, bad_server, reply
from tests.support.effort import times
from tests.support.patience import with_load
from tests.support.recorder import Told

PAGE = b"<p>arrived</p>"
LIMITS = Limits(total_timeout=timedelta(seconds=5))
NOBODY = Resolver(SystemClock(), lookup=lambda _host: ())
SECRETS: Final[HeaderPairs] = (("Authorization", "Bearer x"), ("Cookie", "a=1"), ("X-Mine", "kept"))


@pytest.fixture
async def server() -> AsyncIterator[BadServer]:
    async with bad_server() as server:
        server.answer("/end", reply(200, PAGE))
        yield server


@pytest.fixture
async def egress(server: BadServer) -> AsyncIterator[Egress]:
    named = frozenset({("site.test", server.port), ("other.test", server.port)})
    egress = Egress(AddressRule(named=named), resolver=Resolver(SystemClock(), lookup=lambda _host: ("127.0.0.1",)))
    yield egress
    egress.close()


async def follow(egress: Egress, server: BadServer, path: str, **request: object) -> Outcome:
    url = f"http://site.test:{server.port}{path}"
    return await egress.fetch(Request(url)._replace(**request), redirects=True)


def hops(outcome: Outcome) -> list[tuple[str, int]]:
    return [(hop.url.partition("test")[2].partition("/")[2], hop.status) for hop in outcome.redirects]


def failed(outcome: Outcome) -> Failure:
    assert isinstance(outcome, Failure), outcome
    return outcome


async def test_a_chain_is_followed_and_recorded(egress: Egress, server: BadServer) -> None:
    server.redirect("/start", "/next?q=1#part", 301)
    server.redirect("/next", f"http://other.test:{server.port}/end", 308)
    outcome = await follow(egress, server, "/start")
    assert isinstance(outcome, Response)
    assert (outcome.raw, outcome.url) == (PAGE, f"http://other.test:{server.port}/end")
    assert hops(outcome) == [("start", 301), ("next?q=1", 308)]


async def test_an_answer_without_a_redirect_has_an_empty_chain(egress: Egress, server: BadServer) -> None:
    outcome = await follow(egress, server, "/end")
    assert outcome.redirects == ()


async def test_without_following_a_redirect_is_the_response(egress: Egress, server: BadServer) -> None:
    server.redirect("/start", "/end")
    outcome = await egress.fetch(Request(f"http://site.test:{server.port}/start"))
    assert isinstance(outcome, Response)
    assert outcome.status == 302


@pytest.mark.parametrize(
    "answer",
    [reply(302), reply(302, headers=[("Location", "")]), reply(300, headers=[("Location", "/end")]), reply(304)],
)
async def test_a_status_that_leads_nowhere_is_the_answer(egress: Egress, server: BadServer, answer: bytes) -> None:
    server.answer("/start", answer)
    outcome = await follow(egress, server, "/start")
    assert isinstance(outcome, Response)
    assert outcome.status in (300, 302, 304)


async def test_ten_redirects_are_followed_and_not_one_more(egress: Egress, server: BadServer) -> None:
    for number in range(11):
        server.redirect(f"/{number}", f"/{number + 1}")
    server.answer("/11", reply(200, PAGE))
    assert isinstance(await follow(egress, server, "/1"), Response)
    outcome = failed(await follow(egress, server, "/0"))
    assert outcome.code == "too_many_redirects"
    assert len(outcome.redirects) == 11


async def test_redirects_with_a_growing_query_end(egress: Egress, server: BadServer) -> None:
    server.scripts["/grow"] = lambda line, asked: line.send(
        reply(302, headers=[("Location", f"{asked.target}{'&' if '?' in asked.target else '?'}a=1")])
    )
    assert failed(await follow(egress, server, "/grow")).code == "too_many_redirects"


async def test_a_circle_is_noticed_at_once(egress: Egress, server: BadServer) -> None:
    server.redirect("/a", "/b")
    server.redirect("/b", "/a")
    server.redirect("/self", "/self")
    outcome = failed(await follow(egress, server, "/a"))
    assert outcome.code == "redirect_loop"
    assert hops(outcome) == [("a", 302), ("b", 302)]
    assert failed(await follow(egress, server, "/self")).code == "redirect_loop"
    assert len(server.asked) == 3


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_inside_is_refused_with_its_chain(egress: Egress, server: BadServer, status: int) -> None:
    server.redirect("/start", "http://169.254.169.254/latest/meta-data/", status)
    outcome = failed(await follow(egress, server, "/start"))
    assert (outcome.code, outcome.is_blocked) == ("address_not_public", True)
    assert hops(outcome) == [("start", status)]


async def test_a_redirect_to_another_port_of_a_named_host_is_refused(egress: Egress, server: BadServer) -> None:
    async with bad_server() as neighbour:
        server.redirect("/start", f"http://site.test:{neighbour.port}/")
        assert failed(await follow(egress, server, "/start")).code == "address_not_public"
        assert neighbour.connections == 0


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("file:///etc/passwd", "redirect_scheme"),
        ("ftp://site.test/", "redirect_scheme"),
        ("data:text/html,hi", "redirect_scheme"),
        ("javascript:alert(1)", "redirect_scheme"),
        ("http://user:pass@site.test/", "credentials_in_url"),
        ("http://169.254.169.254:8888\\@example.org/", "backslash_in_url"),
        ("http://[bad/", "invalid_url"),
        ("/" + "a" * 3000, "url_too_long"),
    ],
)
async def test_a_redirect_to_no_page_is_a_failure(egress: Egress, server: BadServer, location: str, code: str) -> None:
    server.redirect("/start", location)
    outcome = failed(await follow(egress, server, "/start"))
    assert (outcome.code, outcome.retryable) == (code, False)
    assert hops(outcome) == [("start", 302)]


async def test_a_location_in_utf8_is_read_as_utf8(egress: Egress, server: BadServer) -> None:
    server.redirect("/start", "/café")
    server.answer("/caf%C3%A9", reply(200, PAGE))
    outcome = await follow(egress, server, "/start")
    assert isinstance(outcome, Response)
    assert outcome.raw == PAGE


async def test_tracking_and_session_parameters_of_a_redirect_are_kept(egress: Egress, server: BadServer) -> None:
    server.redirect("/start", "/end?sid=7&utm_source=x")
    await follow(egress, server, "/start")
    assert server.asked[-1].target == "/end?sid=7&utm_source=x"


async def test_credentials_stay_with_their_origin(egress: Egress, server: BadServer) -> None:
    server.redirect("/start", "/second")
    server.redirect("/second", f"http://other.test:{server.port}/third")
    server.redirect("/third", f"http://site.test:{server.port}/end")
    await follow(egress, server, "/start", headers=SECRETS)
    sent = [{"authorization", "cookie"} & asked.headers.keys() for asked in server.asked]
    assert sent == [{"authorization", "cookie"}, {"authorization", "cookie"}, set(), set()]
    assert [asked.headers["x-mine"] for asked in server.asked] == ["kept"] * 4


@pytest.mark.parametrize(
    ("status", "method", "body"),
    [(301, "GET", b""), (302, "GET", b""), (303, "GET", b""), (307, "POST", b"form"), (308, "POST", b"form")],
)
async def test_the_method_after_a_redirect_is_what_the_status_says(
    egress: Egress, server: BadServer, status: int, method: str, body: bytes
) -> None:
    server.redirect("/start", "/end", status)
    headers = (("Content-Type", "text/plain"),)
    await follow(egress, server, "/start", method="POST", body=b"form", headers=headers)
    last = server.asked[-1]
    assert (last.method, last.body) == (method, body)
    assert ("content-type" in last.headers) == (method == "POST")


async def test_head_stays_head(egress: Egress, server: BadServer) -> None:
    server.answer("/start", b"HTTP/1.1 303 See Other\r\nLocation: /end\r\n\r\n")
    server.answer("/end", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    assert isinstance(await follow(egress, server, "/start", method="HEAD"), Response)
    assert [asked.method for asked in server.asked] == ["HEAD", "HEAD"]


async def test_the_body_of_a_redirect_is_never_decoded(egress: Egress, server: BadServer) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    headers = [("Location", "/end"), ("Content-Encoding", "gzip")]
    server.answer("/start", reply(302, bomb, headers))
    server.answer("/broken", reply(302, b"no gzip", headers))
    for path in ("/start", "/broken"):
        assert isinstance(await follow(egress, server, path), Response)


async def test_the_deadline_is_one_for_the_whole_chain(egress: Egress, server: BadServer) -> None:
    server.redirect("/start", "/silent")
    server.fall_silent("/silent")
    limits = replace(Limits(), total_timeout=timedelta(seconds=with_load(0.15)))
    outcome = failed(await follow(egress, server, "/start", limits=limits))
    assert outcome.code == "total_timeout"
    assert hops(outcome) == [("start", 302)]


async def test_the_caller_may_change_or_refuse_each_hop(egress: Egress, server: BadServer) -> None:
    server.redirect("/start", "/end")
    url = f"http://site.test:{server.port}/start"

    async def outcome_with(at_hop: AtHop) -> Outcome:
        told: Told[Outcome] = Told()
        egress.follow(Request(url), told, at_hop)
        return (await told.at_least(1))[0]

    def with_cookie(request: Request, _response: Response) -> Request:
        return request._replace(headers=(("Cookie", "seen=1"),))

    def refuse(_request: Request, _response: Response) -> Failure:
        return Failure("out_of_scope", "Not there.", retryable=False)

    assert isinstance(await outcome_with(with_cookie), Response)
    assert server.asked[-1].headers["cookie"] == "seen=1"
    refused = failed(await outcome_with(refuse))
    assert refused.code == "out_of_scope"
    assert refused.redirects == (Hop(url, 302),)


async def test_a_cookie_that_a_redirect_to_itself_asks_for_is_not_a_circle(egress: Egress, server: BadServer) -> None:
    server.scripts["/wall"] = lambda line, asked: line.send(
        reply(200, PAGE) if "cookie" in asked.headers else reply(302, headers=[("Location", "/wall")])
    )
    told: Told[Outcome] = Told()

    egress.follow(
        Request(f"http://site.test:{server.port}/wall"),
        told,
        lambda request, _response: request._replace(headers=(("Cookie", "a=1"),)),
    )
    assert isinstance((await told.at_least(1))[0], Response)


async def test_a_journey_can_be_cancelled_at_any_hop(egress: Egress, server: BadServer) -> None:
    server.redirect("/start", "/silent")
    server.fall_silent("/silent")
    told: Told[Outcome] = Told()
    journey = egress.follow(Request(f"http://site.test:{server.port}/start"), told)
    await server.until_asked(2)
    journey.cancel()
    await told.at_least(1)
    assert [failed(outcome).code for outcome in told] == ["cancelled"]


PIECES = st.sampled_from(
    [
        *"/?#:@\\%&=[].é\x80\xff \t",
        "//",
        "..",
        "http:",
        "https:",
        "file:",
        "javascript:",
        "127.0.0.1",
        "inside",
        "site.test",
        "[::1]",
    ]
)


@settings(max_examples=times(150), deadline=None)
@given(st.lists(PIECES, max_size=8).map("".join) | st.text(st.characters(max_codepoint=255), max_size=30))
@example("http://127.0.0.1\\@site.test/")
@example("//\t/x")
@example("")
def test_any_location_ends_in_an_outcome_and_reaches_nobody_else(location: str) -> None:
    async def once() -> tuple[Outcome, int]:
        async with bad_server() as server, bad_server() as inside:
            field = location.replace("inside", f"127.0.0.1:{inside.port}").encode("latin-1", "replace")
            head = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + field.translate(None, b"\r\n\x00")
            server.answer("/", head + b"\r\n\r\n")
            egress = Egress(AddressRule(named=frozenset({("127.0.0.1", server.port)})), LIMITS, resolver=NOBODY)
            outcome = await egress.fetch(Request(f"http://127.0.0.1:{server.port}/"), redirects=True)
            egress.close()
            return outcome, inside.connections

    outcome, touched = asyncio.run(once())
    assert isinstance(outcome, Response | Failure)
    assert len(outcome.redirects) <= LIMITS.max_redirects + 1
    assert touched == 0
