"""Peers that accept a connection and say nothing: each call ends, with an error that names the peer (F66).

The control plane has such a test in tests/wire/test_control_plane.py, the database in test_silent_database.py."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from msgspec.structs import replace

from shoal.audit import commit_status as publisher
from shoal.base.clock import SystemClock
from shoal.base.errors import BackendUnavailable, BodiesUnavailable
from shoal.base.ids import EventId
from shoal.base.settings import BodySettings, RedisSettings, RenderSettings
from shoal.base.signals import Signals
from shoal.base.url import Url
from shoal.drivers import s3_bodies as s3
from shoal.drivers.redis.connection import LoopRedis, ThreadRedis
from shoal.egress import AddressRule, Egress, Limits, Request, Response, endpoint
from shoal.events import courier as sender
from shoal.events.event import EventReceipt
from shoal.web import renderer as remote_renderer
from shoal.web.renderer import RenderRequest
from tests.support.delay_proxy import DelayProxy, delay_proxy
from tests.support.patience import with_load
from tests.support.servers import Servers

CLOCK = SystemClock()
SHORT = timedelta(milliseconds=300)
BOUND = 20.0  # for what would otherwise wait for ever


def shortened(limits: Limits) -> Limits:
    assert limits.idle_timeout <= timedelta(seconds=30), (
        "how long a silent peer is waited for, where nobody shortens it"
    )
    return replace(limits, total_timeout=SHORT, idle_timeout=SHORT)


@pytest.fixture
def silent(servers: Servers) -> Iterator[DelayProxy]:
    """A peer that accepts connections, and forwards what it is told to nobody."""
    server = servers.new_redis()
    try:
        with delay_proxy(server.url) as proxy:
            proxy.delay_seconds = 3600
            yield proxy
    finally:
        server.kill()


def http(peer: DelayProxy) -> str:
    return peer.url.replace("redis://@", "http://")


@pytest.mark.parametrize("client_of", [LoopRedis, ThreadRedis])
async def test_a_connection_to_redis_that_falls_silent_is_replaced(
    servers: Servers, client_of: type[LoopRedis] | type[ThreadRedis]
) -> None:
    server = servers.new_redis()
    try:
        with delay_proxy(server.url) as proxy:
            client = client_of(RedisSettings(url=proxy.url, timeout=timedelta(seconds=with_load(0.3))))
            await client.command("PING")
            proxy.fall_silent()
            async with asyncio.timeout(BOUND):
                with pytest.raises(BackendUnavailable, match="did not respond in time"):
                    await client.command("PING")
                assert await client.command("PING") in (True, b"PONG")
            await client.close()
    finally:
        server.kill()


async def test_a_silent_object_store_is_reported(silent: DelayProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "LIMITS", shortened(s3.LIMITS))
    monkeypatch.setattr(s3, "FIRST_PAUSE_SECONDS", 0.001)
    settings = BodySettings(place="s3://pages", endpoint=http(silent), access_key="a", secret_key="b")
    bodies = s3.S3Bodies(settings, CLOCK, Signals())
    async with asyncio.timeout(BOUND):
        with pytest.raises(BodiesUnavailable):
            await bodies.put("one", b"body")
    bodies.close()


async def test_a_silent_renderer_is_reported(silent: DelayProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_renderer, "BEYOND", timedelta(0))
    renderer = remote_renderer.RemoteRenderer(RenderSettings(url=http(silent), timeout=timedelta(seconds=1)), CLOCK)
    async with asyncio.timeout(BOUND):
        with pytest.raises(BackendUnavailable, match="the renderer"):
            await renderer.render(RenderRequest(url="http://example.org/"))
    await renderer.close()


async def test_a_silent_receiver_of_events_is_an_answer_to_try_again(
    silent: DelayProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "LIMITS", shortened(sender.LIMITS))
    rule = AddressRule(named=frozenset({endpoint(Url(http(silent)))}))
    webhook = sender.WebhookSender(lambda: Egress(rule), CLOCK)
    event = EventReceipt(1, EventId("evt_1"), "crawl.completed", "crl_1", "{}", 0)
    async with asyncio.timeout(BOUND):
        answer = await webhook.send(http(silent), ["secret"], event)
    assert (answer.status, answer.code) == (None, "total_timeout")
    webhook.close()


async def test_a_silent_forge_is_waited_for_twenty_seconds(silent: DelayProxy) -> None:
    assert publisher.LIMITS.total_timeout == timedelta(seconds=20)
    egress = Egress(AddressRule(named=frozenset({endpoint(Url(http(silent)))})))
    async with asyncio.timeout(BOUND):
        outcome = await egress.fetch(Request(http(silent), "POST", (), b"{}", shortened(publisher.LIMITS)))
    assert not isinstance(outcome, Response)
    assert outcome.code == "total_timeout"
    egress.close()
