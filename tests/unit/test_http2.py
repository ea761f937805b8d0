"""HTTP/2 servers that violate the protocol: each response gets its error code, nothing hangs, and the next page is
fetched."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from msgspec.structs import replace

from shoal.egress import Egress, Failure, Limits, Outcome, Request, Response
from tests.support.bad_http2_server import GOOD, bad_http2_server
from tests.support.patience import with_load
from tests.unit.test_egress_transport import LIMITS, trusting_egress


class Pair:
    """An egress, and the server that it sends requests to."""

    def __init__(self, egress: Egress, port: int) -> None:
        self._egress = egress
        self._port = port

    async def ask(self, path: str, limits: Limits | None = None) -> Outcome:
        async with asyncio.timeout(60):
            return await self._egress.fetch(Request(f"https://site.test:{self._port}{path}", limits=limits))


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with bad_http2_server("good") as port:
        connect, idle, total = (timedelta(seconds=with_load(seconds)) for seconds in (2, 1, 4))
        limits = replace(LIMITS, connect_timeout=connect, idle_timeout=idle, total_timeout=total)
        egress = trusting_egress(limits)
        yield Pair(egress, port)
        egress.close()


async def test_good_pages_come_by_http2_however_few_streams_there_are(pair: Pair) -> None:
    pages = await asyncio.gather(*(pair.ask(path) for path in GOOD))
    assert [page.status for page in pages if isinstance(page, Response)] == [200] * len(GOOD)
    assert {page.http_version for page in pages if isinstance(page, Response)} == {"2"}


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/goaway", "protocol_error"),
        ("/reset", "protocol_error"),
        ("/refused", "connection_lost"),
        ("/shut", "idle_timeout"),
        ("/headers", "headers_too_large"),
        ("/short", "protocol_error"),
        ("/long", "protocol_error"),
        ("/streams", "protocol_error"),
        ("/noise", "protocol_error"),
    ],
)
async def test_each_http2_fault_has_its_code_and_the_next_page_is_fetched(pair: Pair, path: str, code: str) -> None:
    failure = await pair.ask(path)
    assert isinstance(failure, Failure), failure
    assert failure.code == code, failure
    assert isinstance(await pair.ask("/good/0"), Response)


async def test_requests_that_share_a_connection_with_a_fault_are_answered_or_may_be_tried_again(pair: Pair) -> None:
    outcomes = await asyncio.gather(*(pair.ask(path) for path in [*GOOD[:5], "/goaway", "/noise", *GOOD[5:]]))
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    assert all(failure.retryable for failure in failures), failures
    assert len(failures) < len(GOOD)
