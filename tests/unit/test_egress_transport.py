"""Requests over real connections to a server that misbehaves on purpose (B29-B33, B40, B41)."""

import asyncio
import gc
import os
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path

import pytest
import uvloop
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.base.clock import SystemClock
from shoal.egress import AddressRule, Egress, Exchange, Failure, Limits, Outcome, Request, Resolver, Response
from tests.support.bad_http_server import TLS, Asked, BadServer, Line, bad_server, own_authority, reply
from tests.support.effort import times
from tests.support.patience import in_time
from tests.support.recorder import Told

LOOPBACK = AddressRule(allow=(ip_network("127.0.0.0/8"),))
LIMITS = Limits(
    connect_timeout=timedelta(seconds=10),
    idle_timeout=timedelta(seconds=20),
    total_timeout=timedelta(seconds=30),
)
PAGE = b"<p>page</p>" * 100


def new_egress(limits: Limits = LIMITS) -> Egress:
    return Egress(LOOPBACK, limits, resolver=Resolver(SystemClock(), lookup=lambda _host: ("127.0.0.1",)))


def trusting_egress(limits: Limits = LIMITS) -> Egress:
    with own_authority():
        return new_egress(limits)


@pytest.fixture
async def server() -> AsyncIterator[BadServer]:
    async with bad_server() as server:
        yield server


@pytest.fixture
async def egress() -> AsyncIterator[Egress]:
    egress = new_egress()
    yield egress
    egress.close()


async def ask(egress: Egress, server: BadServer, path: str = "/", limits: Limits | None = None) -> Outcome:
    return await egress.fetch(Request(f"http://site.test:{server.port}{path}", limits=limits))


def answered(outcome: Outcome) -> Response:
    assert isinstance(outcome, Response), outcome
    return outcome


def failed(outcome: Outcome) -> Failure:
    assert isinstance(outcome, Failure), outcome
    return outcome


# What goes well


async def test_an_answer_comes_back_as_it_was_sent(egress: Egress, server: BadServer) -> None:
    server.answer("/page", reply(200, PAGE, [("Content-Type", "text/html"), ("X-Two", "a"), ("X-Two", "b")]))
    response = answered(await ask(egress, server, "/page"))
    assert (response.status, response.raw, response.url) == (
        200,
        PAGE,
        f"http://site.test:{server.port}/page",
    )
    assert (response.address, response.http_version, response.reason) == ("127.0.0.1", "1.1", "Whatever")
    assert response.headers.all("x-two") == ("a", "b")
    assert response.seconds > 0


async def test_any_status_is_an_answer(egress: Egress, server: BadServer) -> None:
    for status in (200, 204, 304, 404, 429, 503, 599):
        server.answer("/", f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode())
        assert answered(await ask(egress, server)).status == status


async def test_a_connection_is_used_again(egress: Egress, server: BadServer) -> None:
    server.answer("/", reply(200, PAGE))
    for _ in range(10):
        assert answered(await ask(egress, server)).raw == PAGE
    assert server.connections == 1


async def test_a_connection_that_the_server_closed_meanwhile_is_replaced(egress: Egress, server: BadServer) -> None:
    server.answer_and_close("/", reply(200, PAGE))
    for _ in range(5):
        assert answered(await ask(egress, server)).raw == PAGE


async def test_the_raw_body_is_not_decoded_on_the_way(egress: Egress, server: BadServer) -> None:
    server.answer("/", reply(200, b"not gzip", [("Content-Encoding", "gzip")]))
    assert answered(await ask(egress, server)).raw == b"not gzip"
    assert server.asked[0].headers["accept-encoding"] == "gzip, deflate, br, zstd"


async def test_a_chunked_body_is_put_together_and_its_trailers_are_not_headers(
    egress: Egress, server: BadServer
) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: 1\r\n\r\n"
    server.answer("/", head, b"5\r\nhello\r\n", b"6\r\n world\r\n", b"0\r\nX-Trailer: t\r\n\r\n")
    response = answered(await ask(egress, server))
    assert response.raw == b"hello world"
    assert [name for name, _ in response.headers.pairs()] == ["Transfer-Encoding", "X-A"]


async def test_answers_that_only_prepare_the_real_one_are_left_out(egress: Egress, server: BadServer) -> None:
    server.answer("/", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", reply(200, PAGE, [("X-A", "1")]))
    response = answered(await ask(egress, server))
    assert response.status == 200
    assert response.headers.get("link") is None
    assert response.headers.get("x-a") == "1"


async def test_a_folded_header_is_one_value(egress: Egress, server: BadServer) -> None:
    server.answer("/", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Long: one\r\n two\r\n\r\n")
    assert answered(await ask(egress, server)).headers.get("x-long") == "one two"


async def test_each_request_sends_its_own_headers_and_method(egress: Egress, server: BadServer) -> None:
    server.answer("*", reply(200, b""))
    url = f"http://site.test:{server.port}/"
    for request in (
        Request(url, headers=(("X-One", "1"), ("X-Empty", ""))),
        Request(url, method="POST", body=b"a=\0b", headers=(("Content-Type", "text/plain"),)),
        Request(url, method="PUT"),
        Request(url, method="DELETE"),
        Request(url),
    ):
        assert answered(await egress.fetch(request)).status == 200
    first, second, third, fourth, fifth = server.asked
    assert (first.method, first.headers["x-one"], first.headers["x-empty"]) == ("GET", "1", "")
    assert (second.method, second.body, second.headers["content-type"]) == ("POST", b"a=\0b", "text/plain")
    assert (third.method, third.headers["content-length"]) == ("PUT", "0")
    assert fourth.method == "DELETE"
    assert fifth.method == "GET"
    assert not {"x-one", "content-type", "content-length", "expect"} & fifth.headers.keys()


async def test_a_head_request_ends_with_the_headers(egress: Egress, server: BadServer) -> None:
    server.answer("/", b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n")
    url = f"http://site.test:{server.port}/"
    assert answered(await egress.fetch(Request(url, method="HEAD"))).raw == b""
    server.answer("/", reply(200, PAGE))
    assert answered(await egress.fetch(Request(url))).raw == PAGE


async def test_the_environment_names_no_proxy(
    egress: Egress, server: BadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server.answer("/", reply(200, PAGE))
    assert answered(await ask(egress, server)).raw == PAGE


@pytest.mark.parametrize(
    "headers",
    [
        (("X-A", "1\r\nX-B: 2"),),
        (("X-A\r\nX-B", "1"),),
        (("X A", "1"),),
        (("", "1"),),
        (("Host", "other.test"),),
        (("Content-Length", "5"),),
        (("transfer-encoding", "chunked"),),
    ],
)
async def test_a_header_that_could_forge_a_request_is_not_sent(
    egress: Egress, server: BadServer, headers: tuple[tuple[str, str], ...]
) -> None:
    url = f"http://site.test:{server.port}/"
    assert failed(await egress.fetch(Request(url, headers=headers))).code == "invalid_request"
    assert server.asked == []
    server.answer("/", reply(200, PAGE))
    assert answered(await ask(egress, server)).raw == PAGE


# What goes badly


@pytest.mark.parametrize(
    "sent", [b"HTTP/1.1 999 \x07High\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nabc"]
)
async def test_operators_see_how_an_answer_that_is_not_http_began(
    server: BadServer, egress: Egress, sent: bytes
) -> None:
    server.answer("/", sent)
    failure = await ask(egress, server)
    assert isinstance(failure, Failure)
    assert repr(sent[:12])[:-1] in failure.operator_detail
    assert "HTTP/1.1" not in failure.message


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"", "empty_reply"),
        (b"plain text, no HTTP\r\n\r\n", "protocol_error"),
        (b"\x00\x01\x02\x03", "protocol_error"),
        (b"HTTP/1.1 099 Low\r\nContent-Length: 0\r\n\r\n", "protocol_error"),
        (b"HTTP/1.1 600 High\r\nContent-Length: 0\r\n\r\n", "protocol_error"),
        (b"HTTP/1.1 999 High\r\nContent-Length: 0\r\n\r\n", "protocol_error"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nhello", "protocol_error"),
        (b"HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n", "protocol_error"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", "protocol_error"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nabc", "protocol_error"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", "protocol_error"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "protocol_error"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "protocol_error"),
        (b"HTTP/1.1 200 OK\r\nX-A: nul\x00byte\r\n\r\n", "protocol_error"),
        (b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n", "protocol_error"),
        (b"HTTP/1.1 200 OK\r\n", "protocol_error"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "protocol_error"),
        (b"HTTP/1.1 302 Found\r\nLocation: /cut\r\n", "protocol_error"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n", "protocol_error"),
    ],
)
async def test_an_answer_that_is_not_http_is_a_failure(
    egress: Egress, server: BadServer, answer: bytes, code: str
) -> None:
    server.answer_and_close("/", answer)
    assert failed(await ask(egress, server)).code == code


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"no colon\r\nX-A: b", "The first header line has no colon, so the response cannot be read."),
        (b"X-A: b\r\nno colon\r\nX-B: c", "The header line after X-A has no colon, so the response cannot be read."),
        (b"X-A: b\r\nX\x00: c", "The header line after X-A has a NUL byte, so the response cannot be read."),
        (b": x\r\nno colon", "A header line has no colon, so the response cannot be read."),
    ],
)
async def test_a_header_line_that_loses_the_answer_is_named(
    egress: Egress, server: BadServer, head: bytes, message: str
) -> None:
    server.answer_and_close("/", b"HTTP/1.1 200 OK\r\n" + head + b"\r\nContent-Length: 2\r\n\r\nhi")
    failure = failed(await ask(egress, server))
    assert (failure.code, failure.message) == ("protocol_error", message)


async def test_bytes_behind_the_announced_end_are_not_taken_for_another_answer(
    egress: Egress, server: BadServer
) -> None:
    server.answer("/", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst" + reply(200, b"forged"))
    server.answer("/next", reply(200, b"second"))
    assert answered(await ask(egress, server)).raw == b"first"
    assert answered(await ask(egress, server, "/next")).raw == b"second"


async def test_a_connection_that_breaks_is_a_failure_worth_another_try(egress: Egress, server: BadServer) -> None:
    async def script(line: Line, _asked: Asked) -> None:
        await line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
        line.reset()

    server.scripts["/"] = script
    failure = failed(await ask(egress, server))
    assert failure.code in ("connection_lost", "protocol_error")
    assert failure.retryable


async def test_nobody_at_the_port_is_a_failure_that_does_not_tell_the_address(egress: Egress) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    failure = failed(await egress.fetch(Request(f"http://site.test:{port}/")))
    assert (failure.code, failure.retryable) == ("connect_error", True)
    assert "127.0.0.1" not in failure.message


@pytest.mark.parametrize("size", [9_999, 10_000])
async def test_a_body_up_to_the_limit_is_read(egress: Egress, server: BadServer, size: int) -> None:
    server.answer("/", reply(200, bytes(size)))
    limits = replace(LIMITS, max_body_bytes=10_000)
    assert len(answered(await ask(egress, server, limits=limits)).raw) == size


async def test_a_body_over_the_limit_is_a_failure_and_not_cut(egress: Egress, server: BadServer) -> None:
    limits = replace(LIMITS, max_body_bytes=10_000)
    server.answer("/announced", reply(200, bytes(10_001)))
    chunk = b"2711\r\n" + bytes(10_001) + b"\r\n0\r\n\r\n"
    server.answer("/chunked", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk)
    server.answer_and_close("/until-the-end", b"HTTP/1.0 200 OK\r\n\r\n" + bytes(10_001))
    for path in ("/announced", "/chunked", "/until-the-end"):
        failure = failed(await ask(egress, server, path, limits))
        assert (failure.code, failure.retryable) == ("body_too_large", False)
        size = " of 10,001 bytes" if path == "/announced" else ""
        assert failure.message.startswith(
            f"The server answered 200, but its body{size} is larger than the limit of 10KB, "
        )


async def test_a_body_that_may_be_cut_gives_its_first_bytes(egress: Egress, server: BadServer) -> None:
    limits = replace(LIMITS, max_body_bytes=10_000, cut_body=True)
    server.answer("/announced", reply(200, bytes(20_000)))
    server.repeat(
        "/endless", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"4000\r\n" + bytes(0x4000) + b"\r\n"
    )
    server.answer("/short", reply(200, bytes(9_999)))
    sizes = [
        len(answered(await ask(egress, server, path, limits)).raw) for path in ("/announced", "/endless", "/short")
    ]
    assert sizes == [10_000, 10_000, 9_999]
    assert failed(await ask(egress, server, "/announced", replace(limits, cut_body=False))).code == "body_too_large"


async def test_an_endless_body_ends_at_the_limit(egress: Egress, server: BadServer) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    server.repeat("/", head, b"10000\r\n" + bytes(0x10000) + b"\r\n")
    assert failed(await ask(egress, server)).code == "body_too_large"


async def test_the_body_of_a_redirect_is_read_only_in_part(egress: Egress, server: BadServer) -> None:
    head = b"HTTP/1.1 302 Found\r\nLocation: /x\r\nTransfer-Encoding: chunked\r\n\r\n"
    server.repeat("/endless", head, b"4000\r\n" + bytes(0x4000) + b"\r\n")
    server.answer("/huge", b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 99999999\r\n\r\n")
    for path in ("/endless", "/huge"):
        response = answered(await ask(egress, server, path))
        assert (response.status, response.headers.get("location")) == (302, "/x")
        assert len(response.raw) <= LIMITS.max_redirect_bytes


@pytest.mark.parametrize(
    "fields",
    [
        b"".join(b"X-%d: 1\r\n" % number for number in range(101)),
        b"X-Long: " + b"a" * 64_000 + b"\r\n",
        b"X-Long: " + b"a" * 1_000_000 + b"\r\n",
        b"Set-Cookie: a=b\r\n" * 300_000,
    ],
)
async def test_too_many_or_too_long_headers_are_a_failure(egress: Egress, server: BadServer, fields: bytes) -> None:
    server.answer_and_close("/", b"HTTP/1.1 200 OK\r\n" + fields + b"Content-Length: 0\r\n\r\n")
    assert failed(await ask(egress, server)).code == "headers_too_large"


async def test_headers_within_the_limits_are_read(egress: Egress, server: BadServer) -> None:
    fields = [(f"X-{number}", "a" * 500) for number in range(99)]
    server.answer("/", reply(200, PAGE, fields))
    assert len(answered(await ask(egress, server)).headers.pairs()) == 100


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"X-A: 1\r\n"),
        (b"HTTP/1.1 200 OK\r\nX-A: ", b"a" * 1000),
        (b"HTTP/1.1 200 ", b"a" * 1000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Trailer: " + b"a" * 1000 + b"\r\n"),
    ],
    ids=["continue", "hints", "headers", "header", "status line", "trailers"],
)
async def test_headers_without_end_are_a_failure(egress: Egress, server: BadServer, head: bytes, piece: bytes) -> None:
    server.repeat("/", head, piece)
    failure = failed(await ask(egress, server))
    assert (failure.code, failure.retryable) == ("headers_too_large", False)


async def test_a_body_in_crumbs_costs_no_more_than_its_size(egress: Egress, server: BadServer) -> None:
    crumbs = b"2\r\nab\r\n" * 150_000 + b"0\r\n\r\n"
    server.answer("/", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + crumbs)
    tracemalloc.start()
    try:
        response = answered(await ask(egress, server))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert response.raw == b"ab" * 150_000
    assert most < 12 * len(response.raw)


@settings(max_examples=times(60), deadline=None)
@given(
    st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 301 Moved\r\nLocation: ", b"HTTP/1.1 1"]),
    st.binary(max_size=300),
    st.sampled_from([b"", b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n"]),
)
def test_any_bytes_for_an_answer_end_in_an_outcome(head: bytes, middle: bytes, tail: bytes) -> None:
    async def once() -> Outcome:
        async with bad_server() as server:
            server.answer_and_close("/", head + middle + tail)
            egress = new_egress()
            outcome = await ask(egress, server)
            egress.close()
            return outcome

    assert isinstance(asyncio.run(once()), Response | Failure)


CHUNKS = st.lists(
    st.sampled_from(
        [
            b"0",
            b"1",
            b"5",
            b"ffff",
            b"-1",
            b"5;x=1",
            b" 5",
            b"5 ",
            b"\r\n",
            b"\n",
            b"hello",
            b"X: 1",
            b"\x00",
            b"F" * 20,
        ]
    ),
    max_size=12,
).map(b"".join)
FIELDS = st.lists(
    st.sampled_from(
        [
            *(b"Content-Length: 5", b"Content-Length: 50", b"Content-Length: x", b"Transfer-Encoding: chunked"),
            *(
                b"Transfer-Encoding: gzip",
                b"Content-Encoding: br",
                b"Connection: close",
                b"Location: /",
                b"Location: //x",
            ),
            *(
                b" folded",
                b"\tfolded",
                b": empty",
                b"no colon",
                b"X\x00: 1",
                b"Set-Cookie: a=b",
                b"HTTP/1.1 200 OK",
                b"",
            ),
        ]
    ),
    max_size=6,
).map(b"\r\n".join)


@settings(max_examples=times(150), deadline=None)
@given(st.sampled_from([b"100", b"103", b"200", b"204", b"206", b"302", b"304", b"404", b"999"]), FIELDS, CHUNKS)
@example(b"302", b"Location: /", b"")
@example(b"200", b"Transfer-Encoding: chunked\r\nContent-Length: 5", b"0\r\n")
@example(b"200", b"Content-Length: 5\r\n\r\nHTTP/1.1 200 OK", b"hello")
def test_any_framing_ends_in_an_outcome_and_the_next_answer_is_not_mixed_up(
    status: bytes, fields: bytes, body: bytes
) -> None:
    async def once() -> tuple[Outcome, Outcome]:
        async with bad_server() as server:
            server.answer_and_close("/", b"HTTP/1.1 " + status + b" X\r\n" + fields + b"\r\n\r\n" + body)
            server.answer("/next", reply(200, b"the next"))
            egress = new_egress()
            outcomes = await ask(egress, server), await ask(egress, server, "/next")
            egress.close()
            return outcomes

    first, second = asyncio.run(once())
    assert isinstance(first, Response | Failure)
    assert answered(second).raw == b"the next"


# Deadlines


async def test_an_answer_that_never_comes_ends_at_the_total_deadline(egress: Egress, server: BadServer) -> None:
    server.fall_silent("/", b"HTTP/1.1 200 OK\r\n")
    limits = replace(LIMITS, total_timeout=timedelta(milliseconds=100))
    failure = failed(await ask(egress, server, limits=limits))
    assert (failure.code, failure.retryable) == ("total_timeout", True)


async def test_a_drip_ends_at_the_total_deadline(egress: Egress, server: BadServer) -> None:
    server.repeat("/", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x", pause_seconds=0.01)
    limits = replace(LIMITS, total_timeout=timedelta(milliseconds=200))
    assert failed(await ask(egress, server, limits=limits)).code == "total_timeout"


async def test_silence_in_the_middle_of_an_answer_ends_at_the_idle_deadline(egress: Egress, server: BadServer) -> None:
    server.fall_silent("/", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    limits = replace(LIMITS, idle_timeout=timedelta(seconds=1))
    assert failed(await ask(egress, server, limits=limits)).code == "idle_timeout"


async def test_a_server_that_takes_no_connection_ends_at_the_connect_deadline(egress: Egress) -> None:
    limits = replace(LIMITS, connect_timeout=timedelta(milliseconds=100))
    with FullSocket() as port:
        failure = failed(await egress.fetch(Request(f"http://site.test:{port}/", limits=limits)))
    assert (failure.code, failure.retryable) == ("connect_timeout", True)


async def test_a_tls_greeting_that_is_never_answered_ends_at_the_connect_deadline(egress: Egress) -> None:
    limits = replace(LIMITS, connect_timeout=timedelta(milliseconds=100))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        url = f"https://site.test:{silent.getsockname()[1]}/"
        assert failed(await egress.fetch(Request(url, limits=limits))).code == "connect_timeout"


class FullSocket:
    """A port whose queue of connections is full: the kernel drops what comes."""

    def __enter__(self) -> int:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        port: int = self._listener.getsockname()[1]
        self._queued = [socket.socket() for _ in range(3)]
        for queued in self._queued:
            queued.setblocking(False)
            queued.connect_ex(("127.0.0.1", port))
        return port

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._queued):
            each.close()


# TLS


@asynccontextmanager
async def tls_pair(certificate: str) -> AsyncIterator[tuple[Egress, BadServer]]:
    async with bad_server(certificate) as server:
        server.answer("/", reply(200, PAGE))
        egress = trusting_egress()
        try:
            yield egress, server
        finally:
            egress.close()


async def test_a_certificate_of_a_known_authority_is_trusted() -> None:
    async with tls_pair("good") as (egress, server):
        for _ in range(2):
            assert answered(await egress.fetch(Request(f"https://site.test:{server.port}/"))).raw == PAGE
        assert server.connections == 1


@pytest.mark.parametrize(
    ("certificate", "code"),
    [("expired", "tls_expired"), ("self_signed", "tls_self_signed"), ("other", "tls_wrong_host")],
)
async def test_a_certificate_that_proves_nothing_is_a_failure(certificate: str, code: str) -> None:
    async with tls_pair(certificate) as (egress, server):
        failure = failed(await egress.fetch(Request(f"https://site.test:{server.port}/")))
        assert (failure.code, failure.retryable) == (code, False)
        assert server.asked == []


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_old_versions_of_tls_are_refused() -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.load_cert_chain(TLS / "good.pem")
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    async with bad_server(context=old) as server:
        egress = trusting_egress()
        assert failed(await egress.fetch(Request(f"https://site.test:{server.port}/"))).code == "tls_error"
        assert server.asked == []
        egress.close()


async def test_a_chain_of_certificates_without_end_is_refused(tmp_path: Path) -> None:
    key_and_certificate = (TLS / "good.pem").read_text()
    certificate = key_and_certificate[key_and_certificate.index("-----BEGIN CERTIFICATE") :]
    (tmp_path / "long.pem").write_text(key_and_certificate + certificate * 500)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "long.pem")
    async with bad_server(context=context) as server:
        egress = trusting_egress()
        failure = failed(await egress.fetch(Request(f"https://site.test:{server.port}/")))
        assert failure.code.startswith("tls_")
        assert server.asked == []
        egress.close()


async def test_a_tls_greeting_that_is_answered_in_plain_text_is_a_tls_error(egress: Egress) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    plain = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"https://site.test:{plain.sockets[0].getsockname()[1]}/"
    assert failed(await egress.fetch(Request(url))).code == "tls_error"
    plain.close()


# Callbacks, cancelling, closing


async def test_a_callback_may_send_the_next_request(egress: Egress, server: BadServer) -> None:
    server.answer("/", reply(200, PAGE))
    url = f"http://site.test:{server.port}/"
    finished = asyncio.get_running_loop().create_future()
    statuses: list[int] = []

    def done(outcome: Outcome) -> None:
        statuses.append(answered(outcome).status)
        if len(statuses) < 50:
            egress.submit(Request(url), done)
        else:
            finished.set_result(None)

    egress.submit(Request(url), done)
    await in_time(finished)
    assert statuses == [200] * 50
    assert server.connections == 1


async def test_many_requests_are_under_way_at_once(egress: Egress, server: BadServer) -> None:
    everybody = asyncio.Event()

    async def script(line: Line, _asked: Asked) -> None:
        if len(server.asked) == 40:
            everybody.set()
        await everybody.wait()
        await line.send(reply(200, PAGE))

    server.scripts["*"] = script
    outcomes = await asyncio.gather(*(ask(egress, server, f"/{number}") for number in range(40)))
    assert [answered(outcome).url.rpartition("/")[2] for outcome in outcomes] == [str(n) for n in range(40)]


async def test_a_callback_is_never_called_before_submit_returns(egress: Egress) -> None:
    for url in ("ftp://site.test/", "http://10.0.0.1/", "http://site.test:1/"):
        told: list[Outcome] = []
        egress.submit(Request(url, headers=(("Host", "x"),)), told.append)
        assert told == []


async def test_a_callback_that_fails_does_not_harm_other_requests(egress: Egress, server: BadServer) -> None:
    server.answer("/", reply(200, PAGE))
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))

    def broken(_outcome: Outcome) -> None:
        raise LookupError

    egress.submit(Request(f"http://site.test:{server.port}/"), broken)
    outcomes = await asyncio.gather(*(ask(egress, server) for _ in range(5)))
    assert all(answered(outcome).raw == PAGE for outcome in outcomes)
    assert reported == ["the callback of a request failed"]


async def test_a_cancelled_request_ends_once_as_cancelled(egress: Egress, server: BadServer) -> None:
    server.fall_silent("/")
    told: Told[Outcome] = Told()
    handle = egress.submit(Request(f"http://site.test:{server.port}/"), told)
    await server.until_asked()
    handle.cancel()
    handle.cancel()
    assert told == []
    await told.at_least(1)
    await server.until_alone()
    assert [failed(outcome).code for outcome in told] == ["cancelled"]


async def test_cancelling_before_the_name_is_resolved_sends_nothing(server: BadServer) -> None:
    egress = new_egress()
    told: list[Outcome] = []
    egress.submit(Request(f"http://site.test:{server.port}/"), told.append).cancel()
    assert answered(await ask(egress, server)).status == 404
    assert [failed(outcome).code for outcome in told] == ["cancelled"]
    assert len(server.asked) == 1
    egress.close()


async def test_a_cancelled_task_takes_its_request_along(egress: Egress, server: BadServer) -> None:
    server.fall_silent("/")
    task = asyncio.create_task(ask(egress, server))
    await server.until_asked(1, task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.until_alone()


async def test_a_callback_may_cancel_the_others_of_its_wake(egress: Egress, server: BadServer) -> None:
    server.answer("/", reply(200, PAGE))
    await ask(egress, server)
    told: Told[Outcome] = Told()
    handles: list[Exchange] = []

    later: Told[Outcome] = Told()
    url = f"http://site.test:{server.port}/"

    def done(outcome: Outcome) -> None:
        told(outcome)
        while handles:
            handles.pop().cancel()
            egress.submit(Request(url + "later"), later)

    server.answer("/later", reply(200, b"later"))
    handles += [egress.submit(Request(url), done) for _ in range(10)]
    await told.at_least(10)
    assert [type(outcome) for outcome in told] == [Response] + [Failure] * 9
    assert {answered(outcome).raw for outcome in await later.at_least(10)} == {b"later"}


async def test_closing_ends_what_is_under_way_and_frees_every_descriptor(server: BadServer) -> None:
    server.answer("/page", reply(200, PAGE))
    server.fall_silent("/silent")
    gc.collect()
    before = open_descriptors()
    egress = new_egress()
    await asyncio.gather(*(ask(egress, server, "/page") for _ in range(5)))
    told: list[Outcome] = []
    for path in ("/silent", "/silent"):
        egress.submit(Request(f"http://site.test:{server.port}{path}"), told.append)
    await server.until_asked(7)
    egress.close()
    egress.close()
    assert [failed(outcome).code for outcome in told] == ["cancelled"] * 2
    await server.until_alone()
    assert open_descriptors() == before


async def test_a_closed_egress_sends_nothing_more(server: BadServer) -> None:
    egress = new_egress()
    await ask(egress, server)
    egress.close()
    assert failed(await ask(egress, server)).code == "cancelled"


def open_descriptors() -> set[str]:
    listed = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")
    return {entry.name for entry in listed.iterdir() if os.path.lexists(entry)}


# Loops


async def fetch_twice(egress: Egress) -> list[int]:
    async with bad_server() as server:
        server.answer("/", reply(200, PAGE))
        server.answer_and_close("/gone", reply(200, PAGE))
        paths = ("/", "/gone", "/")
        return [answered(await ask(egress, server, path)).status for path in paths]


@pytest.fixture
def egress_for_loops() -> Iterator[Egress]:
    egress = new_egress()
    yield egress
    egress.close()


def test_one_egress_serves_one_loop_after_the_other(egress_for_loops: Egress) -> None:
    for run in (asyncio.run, uvloop.run, uvloop.run, asyncio.run):
        assert run(fetch_twice(egress_for_loops)) == [200, 200, 200]


def test_requests_left_behind_by_a_loop_do_not_disturb_the_next(egress_for_loops: Egress) -> None:
    async def leave() -> None:
        async with bad_server() as server:
            server.fall_silent("/")
            egress_for_loops.submit(Request(f"http://site.test:{server.port}/"), lambda _outcome: None)
            await server.until_asked()

    uvloop.run(leave())
    assert uvloop.run(fetch_twice(egress_for_loops)) == [200, 200, 200]


def test_sockets_are_watched_one_by_one_where_there_is_no_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("select.epoll", raising=False)
    egress = new_egress()
    assert uvloop.run(fetch_twice(egress)) == [200, 200, 200]
    assert uvloop.run(fetch_twice(egress)) == [200, 200, 200]
    egress.close()
