"""Guarantees of the events package: numbers without gaps, each wanted event delivered at least once with one id, failed
deliveries retried for a day, and no receiver delayed by another one. F56-F58, B87."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from ipaddress import ip_network
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook as Receiver
from standardwebhooks.webhooks import WebhookVerificationError

from shoal.base.clock import SystemClock, span
from shoal.base.database import Database
from shoal.base.errors import BackendUnavailable, InvalidInput, NotFound, TooLarge
from shoal.base.service import LEAD, LeaderOnly
from shoal.base.settings import EventSettings
from shoal.egress import AddressRule, Egress
from shoal.events import courier as courier_room
from shoal.events.courier import TAKEN_FOR, Answer, Courier, CourierFailed, WebhookDisabled
from shoal.events.event import Event, EventReceipt, append_events
from shoal.events.forwarder import EventFile, EventRetention, Forwarder, SinkMissedEvents
from shoal.events.store import EventStore, WebhookStore
from shoal.events.webhook import WAITS, DeliveryState, NewWebhook, Webhook, WebhookChange
from shoal.events.webhooks import MOST_WEBHOOKS, Webhooks
from shoal.serve.resources.webhook import Webhook as ShownWebhook
from tests.contract.conftest import Bench, Severed
from tests.support.bad_http_server import Asked, BadServer, Line, bad_server, reply

LOOPBACK = AddressRule(allow=(ip_network("127.0.0.0/8"),))
OK = reply(204, b"")


class Post:
    """The events package on a bench, with a server that receives webhooks."""

    def __init__(self, bench: Bench, server: BadServer) -> None:
        self.bench, self.server = bench, server
        self.events, self.store = EventStore(), WebhookStore()
        self.webhooks = Webhooks(bench.database, LOOPBACK)
        self.forwarder = Forwarder(bench.database, bench.signals)
        self.courier = self.new_courier()
        server.answer("/hook", OK)

    def new_courier(self) -> Courier:
        return Courier(self.bench.database, lambda: Egress(LOOPBACK), self.bench.clock, self.bench.signals, lambda: 0.0)

    async def hook(self, path: str = "/hook", *events: str) -> Webhook:
        return await self.webhooks.make(NewWebhook(url=f"http://127.0.0.1:{self.server.port}{path}", events=[*events]))

    async def happen(self, *types: str) -> list[str]:
        events = [Event(kind, f"subject {place}", {"place": place}) for place, kind in enumerate(types)]
        for event in events:
            await self.bench.database.run(lambda tx, chosen=event: append_events(tx, chosen))
        return [event.id for event in events]

    async def carry(self) -> None:
        """Run all chores until nothing is left to do now."""
        await self.forwarder.run_once()
        await self.courier.run_once()
        await self.courier.rest()
        assert not [told for told in self.bench.signals_seen if isinstance(told, CourierFailed)]

    def received(self, path: str = "/hook") -> list[str]:
        return [asked.headers["webhook-id"] for asked in self.server.asked if asked.target == path]

    async def states(self, webhook: Webhook) -> list[str]:
        found = await self.webhooks.deliveries(webhook.id, None, 2**62, 100)
        return [one.state.value for one in reversed(found)]


@pytest.fixture
async def post(bench: Bench) -> AsyncIterator[Post]:
    async with bad_server() as server:
        post = Post(bench, server)
        yield post
        await post.courier.close()


# Numbers


async def test_events_get_numbers_without_gaps_in_the_order_of_their_commits(post: Post) -> None:
    ids = await post.happen("crawl.started", "crawl.completed", "crawl.failed")
    assert await post.webhooks.events(0, 10) == []  # an event without a number blocks the ones after it
    await post.forwarder.run_once()
    told = await post.webhooks.events(0, 10)
    assert [one.sequence for one in told] == [1, 2, 3]
    assert sorted(one.id for one in told) == sorted(ids)
    assert [one.sequence for one in await post.webhooks.events(2, 10)] == [3]


async def test_large_events_are_read_a_few_at_a_time_and_none_is_missed(
    post: Post, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.base.database.MOST_READ", 30)  # two and a half of these
    await post.happen(*["crawl.started"] * 4, "crawl.completed")
    await post.forwarder.run_once()
    pages, after = [], 0
    while found := await post.webhooks.events(after, 100):
        pages.append([one.sequence for one in found])
        after = found[-1].sequence
    assert pages == [[1, 2], [3, 4], [5]]
    file = EventFile(post.bench.database, tmp_path / "events.jsonl")
    while (await file.run_once()).again_in is not None:
        pass
    assert len((tmp_path / "events.jsonl").read_bytes().splitlines()) == 5


async def test_large_events_are_sent_a_few_at_a_time_and_all_of_them(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.base.database.MOST_READ", 30)  # two and a half of these
    webhook = await post.hook()
    wanted = await post.happen(*["crawl.started"] * 5)
    await post.carry()
    assert sorted(post.received()) == sorted(wanted)
    deliveries = await post.webhooks.deliveries(webhook.id, None, 2**62, 10)
    assert {(one.state.value, one.status, one.attempts) for one in deliveries} == {("delivered", 204, 1)}


async def test_the_few_deliveries_in_a_state_are_all_found(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.events.store.SCAN", 3)
    webhook, other = await post.hook(), await post.hook()
    await post.happen(*["crawl.started"] * 12)
    await post.carry()
    where = f"webhook = '{webhook.id}' AND sequence IN (2, 3, 11)"
    await post.bench.sql(f"UPDATE delivery SET state = 'waiting' WHERE {where}")

    async def listed(hook: Webhook, state: str, before: int, limit: int) -> list[int]:
        return [one.sequence for one in await post.webhooks.deliveries(hook.id, state, before, limit)]

    assert await listed(webhook, "waiting", 2**62, 10) == [11, 3, 2]
    assert await listed(webhook, "waiting", 2**62, 2) == [11, 3]
    assert await listed(webhook, "waiting", 3, 10) == [2]
    assert await listed(other, "waiting", 2**62, 10) == []
    assert await listed(webhook, "delivered", 2**62, 10) == [12, 10, 9, 8, 7, 6, 5, 4, 1]


async def test_a_webhook_goes_with_its_queue_a_batch_a_commit(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.events.webhooks.EMPTIED_AT_ONCE", 2)
    webhook, other = await post.hook(), await post.hook("/other")
    await post.happen(*["crawl.started"] * 5)
    await post.forwarder.run_once()
    await post.webhooks.remove(webhook.id)
    assert [one.id for one in await post.webhooks.all()] == [other.id]
    assert await post.bench.number("SELECT count(*) FROM delivery") == 5
    with pytest.raises(NotFound):
        await post.webhooks.remove(webhook.id)


async def test_a_forwarder_goes_on_at_once_while_any_webhook_is_behind(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = [await post.hook(), await post.hook("/other")]
    for hook in hooks:
        await post.webhooks.change(hook.id, WebhookChange(enabled=False))
    await post.happen(*["crawl.started"] * 5)
    await post.forwarder.run_once()
    for hook in hooks:
        await post.webhooks.change(hook.id, WebhookChange(enabled=True))
    monkeypatch.setattr("shoal.events.forwarder.BATCH", 2)
    passes = [(await post.forwarder.run_once()).again_in is not None for _ in range(3)]
    assert passes == [True, True, False]
    assert await post.bench.number("SELECT count(*) FROM delivery") == 10


async def test_an_event_reads_as_a_cloud_event(post: Post) -> None:
    [event_id] = await post.happen("crawl.completed")
    await post.forwarder.run_once()
    [told] = await post.webhooks.events(0, 1)
    answer = json.loads(told.line())
    assert answer["specversion"] == "1.0"
    assert (answer["id"], answer["type"], answer["source"]) == (event_id, "crawl.completed", "shoal")
    assert answer["data"] == {"place": 0}
    assert datetime.fromisoformat(answer["time"]).tzinfo is not None


# Delivery


async def test_a_wanted_event_is_delivered_once_and_signed_as_the_specification_says(post: Post) -> None:
    post.bench.clock.jump(
        (SystemClock().now() - post.bench.clock.now()).total_seconds()
    )  # the library checks the timestamp
    webhook = await post.hook("/hook", "crawl.job.*")
    _, wanted = await post.happen("crawl.started", "crawl.job.completed")
    await post.carry()
    await post.carry()
    [asked] = post.server.asked
    assert asked.headers["webhook-id"] == wanted
    assert asked.headers["content-type"].startswith("application/cloudevents+json")
    assert Receiver(webhook.secret).verify(asked.body, asked.headers)["type"] == "crawl.job.completed"
    with pytest.raises(WebhookVerificationError):
        Receiver(webhook.secret).verify(asked.body + b" ", asked.headers)
    assert await post.states(webhook) == ["delivered"]


async def test_events_from_before_the_webhook_are_not_sent(post: Post) -> None:
    await post.happen("crawl.started")
    await post.forwarder.run_once()
    await post.hook()
    await post.carry()
    assert post.received() == []


async def test_after_a_rotation_both_secrets_sign_for_a_day(post: Post) -> None:
    post.bench.clock.jump((SystemClock().now() - post.bench.clock.now()).total_seconds())
    old = await post.hook()
    new = await post.webhooks.rotate(old.id)
    await post.happen("crawl.started")
    await post.carry()
    [asked] = post.server.asked
    for secret in (old.secret, new.secret):
        Receiver(secret).verify(asked.body, asked.headers)
    found, _ = await post.webhooks.get(old.id)
    assert found.secrets(post.bench.clock.micros() + 25 * 3600 * 1_000_000) == [new.secret]


async def test_the_first_secret_stays_valid_after_two_rotations(post: Post) -> None:
    first = await post.hook()
    now = await post.bench.database.read(post.store.now)
    second = await post.webhooks.rotate(first.id)
    third = await post.webhooks.rotate(first.id)
    assert third.secrets(now) == [third.secret, second.secret, first.secret]
    for _ in range(5):
        last = await post.webhooks.rotate(first.id)
    assert len(last.secrets(now)) == 4
    assert last.secrets(now + 25 * 3600 * 1_000_000) == [last.secret]


async def test_a_failure_is_tried_again_with_longer_waits_for_a_day_and_then_is_dead(post: Post) -> None:
    webhook = await post.hook()
    post.server.answer("/hook", reply(500, b"no"))
    [event_id] = await post.happen("crawl.started")
    await post.carry()
    for wait in WAITS:
        await post.bench.jump(wait.total_seconds() - 1)
        before = len(post.received())
        await post.carry()
        assert len(post.received()) == before, wait
        await post.bench.jump(2)
        await post.carry()
        assert len(post.received()) == before + 1, wait
    assert await post.states(webhook) == ["dead"]
    assert set(post.received()) == {event_id}
    assert len(post.received()) == len(WAITS) + 1


async def test_five_days_without_one_success_disable_a_webhook_and_one_success_begins_them_anew(post: Post) -> None:
    webhook = await post.hook()
    for answer, days in ((500, 4), (204, 1), (500, 5)):
        post.server.answer("/hook", reply(answer, b""))
        for _ in range(days):
            await post.happen("crawl.started")
            await post.carry()
            await post.bench.jump(86_400)
            assert (await post.webhooks.get(webhook.id))[0].enabled
    await post.bench.jump(60)
    await post.carry()
    found, _ = await post.webhooks.get(webhook.id)
    assert (found.enabled, found.reason) == (False, "failing")
    [told] = [one for one in post.bench.signals_seen if isinstance(one, WebhookDisabled)]
    assert (told.webhook_id, told.reason) == (webhook.id, "failing")


async def test_a_controllers_clock_disables_no_webhook_and_ends_no_secret(post: Post) -> None:
    webhook = await post.hook()
    await post.webhooks.rotate(webhook.id)
    post.server.answer("/hook", reply(500, b""))
    for _ in range(2):
        await post.happen("crawl.started")
        await post.carry()
        post.bench.clock.step(30 * 86_400)
        await post.bench.jump(60)
    found, _ = await post.webhooks.get(webhook.id)
    assert found.enabled
    now = await post.bench.database.read(post.store.now)
    assert len(found.secrets(now)) == 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (reply(302, b"", [("Location", "http://127.0.0.1:1/")]), "redirects"),
        (reply(500, b""), "500"),
        (reply(404, b""), "404"),
    ],
)
async def test_a_response_other_than_2xx_is_a_failed_delivery(post: Post, answer: bytes, words: str) -> None:
    webhook = await post.hook()
    post.server.answer("/hook", answer)
    await post.happen("crawl.started")
    await post.carry()
    [delivery] = await post.webhooks.deliveries(webhook.id, None, 2**62, 10)
    assert delivery.state is DeliveryState.WAITING
    assert words in (delivery.error or "")
    assert len(post.server.asked) == 1  # the redirect was not followed


async def test_gone_disables_the_webhook_and_enabling_it_sends_what_it_missed(post: Post) -> None:
    webhook = await post.hook()
    post.server.answer("/hook", reply(410, b""))
    await post.happen("crawl.started")
    await post.carry()
    found, _ = await post.webhooks.get(webhook.id)
    assert (found.enabled, found.reason) == (False, "gone")
    await post.happen("crawl.completed")
    await post.bench.jump(60)
    await post.carry()
    assert len(post.received()) == 1
    post.server.answer("/hook", OK)
    await post.webhooks.change(webhook.id, WebhookChange(enabled=True))
    await post.carry()
    assert len(set(post.received())) == 2
    assert await post.states(webhook) == ["delivered", "delivered"]


async def test_retry_after_holds_the_whole_webhook(post: Post) -> None:
    webhook = await post.hook()
    post.server.answer("/hook", reply(429, b"", [("Retry-After", "300")]))
    await post.happen("crawl.started")
    await post.carry()
    await post.happen("crawl.completed")
    await post.bench.jump(250)
    post.server.answer("/hook", OK)
    await post.carry()
    assert len(post.received()) == 1
    await post.bench.jump(60)
    await post.carry()
    assert await post.states(webhook) == ["delivered", "delivered"]


@pytest.mark.parametrize("moved", [True, False])
async def test_changing_the_url_of_a_held_webhook_or_enabling_it_ends_the_hold(post: Post, moved: bool) -> None:
    post.server.answer("/full", reply(429, b"", [("Retry-After", "3600")]))
    webhook = await post.hook("/full")
    await post.happen("crawl.started")
    await post.carry()
    held, _ = await post.webhooks.get(webhook.id)
    assert ShownWebhook.of(held).held_until is not None
    there = f"http://127.0.0.1:{post.server.port}/hook"
    seen = await post.webhooks.change(webhook.id, WebhookChange(url=there) if moved else WebhookChange(enabled=True))
    assert (seen.held_until, seen.failing_since) == (0, None)
    [event_id] = await post.happen("crawl.completed")
    await post.carry()
    assert post.received("/hook" if moved else "/full")[-1] == event_id


async def test_a_server_that_hangs_keeps_no_other_webhook_waiting(post: Post) -> None:
    await post.hook("/slow")
    quick = await post.hook("/hook")
    post.server.fall_silent("/slow")
    await post.happen("crawl.started")
    await post.forwarder.run_once()
    await post.courier.run_once()
    await post.server.until(lambda: post.received() != [] and post.received("/slow") != [])
    while await post.states(quick) != ["delivered"]:
        pass  # each check is a round trip, during which the courier continues
    assert post.received() == post.received("/slow")


async def test_a_courier_that_dies_before_it_notes_the_answer_leaves_the_same_id_to_the_next(post: Post) -> None:
    webhook = await post.hook()

    async def kill(line: Line, _: Asked) -> None:
        for task in list(post.courier._serving.values()):
            task.cancel()  # it was delivered, but the response is lost
        await line.send(OK)

    post.server.scripts["/hook"] = kill
    [event_id] = await post.happen("crawl.started")
    await post.carry()
    assert await post.states(webhook) == ["waiting"]
    post.server.answer("/hook", OK)
    other = post.new_courier()
    await post.bench.jump(TAKEN_FOR.total_seconds() + 1)
    await other.run_once()
    await other.rest()
    assert post.received() == [event_id, event_id]
    assert await post.states(webhook) == ["delivered"]
    await other.close()


async def test_two_couriers_and_two_forwarders_send_each_event_once(post: Post) -> None:
    await post.hook()
    await post.happen(*["crawl.started"] * 20)
    other = post.new_courier()
    await post.forwarder.run_once()
    await Forwarder(post.bench.database, post.bench.signals).run_once()
    for courier in (post.courier, other):
        await courier.run_once()
    for courier in (post.courier, other):
        await courier.rest()
    assert sorted(post.received()) == sorted(set(post.received()))
    assert len(post.received()) == 20
    await other.close()


# Replay


async def test_a_dead_event_can_be_replayed_by_its_id(post: Post) -> None:
    webhook = await post.hook()
    [event_id] = await post.happen("crawl.started")
    await post.carry()
    await post.webhooks.replay(webhook.id, event_id)
    await post.carry()
    assert post.received() == [event_id, event_id]
    with pytest.raises(NotFound):
        await post.webhooks.replay(webhook.id, "evt_unknown")


async def test_a_time_range_can_be_replayed(post: Post) -> None:
    webhook = await post.hook("/hook", "crawl.started")
    await post.happen("crawl.started")
    await post.bench.jump(100)
    since = post.bench.clock.micros()
    wanted = await post.happen("crawl.started", "crawl.completed")
    await post.bench.jump(100)
    until = post.bench.clock.micros()
    await post.happen("crawl.started")
    await post.carry()
    before = len(post.received())
    if post.bench.dialect == "postgres":  # the server has its own clock
        since, until = 0, 2**62
    count = await post.webhooks.replay_time(webhook.id, since, until)
    await post.carry()
    assert count == len(post.received()) - before
    assert wanted[0] in post.received()[before:]
    with pytest.raises(InvalidInput):
        await post.webhooks.replay_time(webhook.id, 2, 1)


# Bad input


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"url": "ftp://example.org/"}, "http"),
        ({"url": "http://example.org/", "events": ["crawl.nonsense"]}, "is not an event type"),
        ({"url": "http://example.org/", "secret": "short"}, "not a secret"),
        ({"url": "http://example.org/", "status": "x"}, "status"),
    ],
)
def test_a_bad_webhook_is_refused_in_words(values: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        NewWebhook.read(values)


async def test_a_private_address_is_refused_when_stored(post: Post) -> None:
    with pytest.raises(InvalidInput, match=r"is not allowed \(SSRF protection\)"):
        await post.webhooks.make(NewWebhook(url="http://10.0.0.1/hook"))
    assert await post.webhooks.all() == []


# Event file and retention


async def test_the_file_of_events_has_each_event_once_and_goes_on_where_it_was(post: Post, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(post.bench.database, path)
    ids = await post.happen("crawl.started", "crawl.completed")
    await post.forwarder.run_once()
    await file.run_once()
    path.write_bytes(path.read_bytes() + b'{"half a li')  # a write that was cut short
    ids += await post.happen("crawl.failed")
    await post.forwarder.run_once()
    await EventFile(post.bench.database, path).run_once()
    lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
    assert sorted(json.loads(line)["id"] for line in lines) == sorted(ids)


async def test_deliveries_not_begun_when_one_failed_count_no_attempt(post: Post) -> None:
    webhook = await post.hook()
    await post.happen(*["crawl.started"] * (courier_room.AT_ONCE + 4))
    post.server.answer("/hook", reply(500, b""))
    await post.carry()
    found = await post.webhooks.deliveries(webhook.id, None, 2**62, 100)
    assert [one.attempts for one in reversed(found)] == [1] * courier_room.AT_ONCE + [0] * 4
    post.server.answer("/hook", OK)
    await post.carry()
    untried = [one.event_id for one in found if not one.attempts]
    assert sorted(post.received()[courier_room.AT_ONCE :]) == sorted(untried)


async def test_webhooks_whose_receivers_hang_do_not_take_every_connection(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier_room, "BEGIN_WITHIN", 0.05)
    webhooks = [await post.hook() for _ in range(6)]
    ids = await post.happen("crawl.started", "crawl.failed")
    sending, most = 0, 0
    courier = post.courier
    courier._places = asyncio.Semaphore(2)
    send = courier._sender.send

    async def slow(url: str, secrets: Sequence[str], event: EventReceipt) -> Answer:
        nonlocal sending, most
        sending, most = sending + 1, max(most, sending + 1)
        await SystemClock().sleep(0.02)
        sending -= 1
        return await send(url, secrets, event)

    monkeypatch.setattr(courier._sender, "send", slow)
    async with asyncio.timeout(60):
        while len(post.received()) < len(webhooks) * len(ids):
            await post.carry()
    assert most == 2
    assert all(not one.failing_since for one in await post.webhooks.all())


async def test_events_that_a_slow_receiver_left_are_sent_with_the_next_batch(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier_room, "BEGIN_WITHIN", 0.0)
    webhook = await post.hook()
    ids = await post.happen(*["crawl.started"] * (3 * courier_room.AT_ONCE))
    await post.carry()
    assert sorted(post.received()) == sorted(ids)
    found = await post.webhooks.deliveries(webhook.id, None, 2**62, 100)
    assert {(one.state.value, one.attempts) for one in found} == {("delivered", 1)}


async def test_old_events_are_removed_unless_a_receiver_still_needs_them(post: Post) -> None:
    webhook = await post.hook()
    post.server.answer("/hook", reply(500, b""))
    await post.happen("crawl.started")
    await post.carry()
    await post.bench.jump(20 * 86400)
    retention = EventRetention(EventSettings(), post.bench.signals)
    before = await post.bench.number("SELECT max(created_at) + 1 FROM outbox")
    assert await retention.prune(post.bench.database, before, 100) == (0, False)
    post.server.answer("/hook", OK)
    await post.carry()
    assert await post.states(webhook) == ["delivered"]
    assert await retention.prune(post.bench.database, before, 100) == (1, False)
    assert await post.webhooks.events(0, 10) == []


async def test_the_queue_of_a_disabled_webhook_does_not_keep_old_events(post: Post) -> None:
    webhook = await post.hook("/down")
    post.server.answer("/down", reply(500, b""))
    await post.happen("crawl.completed")
    await post.carry()
    await post.webhooks.change(webhook.id, WebhookChange(enabled=False))
    before = await post.bench.number("SELECT max(created_at) + 1 FROM outbox")
    retention = EventRetention(EventSettings(), post.bench.signals)
    assert await retention.prune(post.bench.database, before, 100) == (1, False)
    assert await post.states(webhook) == []


async def test_an_event_that_a_sink_has_not_read_is_kept_longer_but_not_for_ever(post: Post, tmp_path: Path) -> None:
    file = EventFile(post.bench.database, tmp_path / "events.jsonl")
    await post.happen("crawl.started")
    await post.forwarder.run_once()
    await file.run_once()
    [missed] = await post.happen("crawl.completed")
    await post.forwarder.run_once()
    settings = EventSettings(keep="14d", longest="20d")
    retention = EventRetention(settings, post.bench.signals)
    before = await post.bench.number("SELECT max(created_at) + 1 FROM outbox")
    assert await retention.prune(post.bench.database, before, 100) == (1, False)
    assert [one.id for one in await post.webhooks.events(0, 10)] == [missed]
    assert await retention.prune(post.bench.database, before + span(timedelta(days=6)), 100) == (1, False)
    assert [one.sink for one in post.bench.signals_seen if isinstance(one, SinkMissedEvents)] == [file.sink]
    assert (
        await post.bench.number("SELECT count(*) FROM event_cursor") == 0
    )  # a removed receiver does not block retention


# Two controllers, one file


async def test_of_two_controllers_with_one_file_one_writes_and_the_other_takes_over(post: Post, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    mortal = Severed(post.bench.database)

    def controller(name: str, database: Database) -> LeaderOnly:
        file = EventFile(database, path)
        return LeaderOnly(file, post.bench.database, name, lead=file.sink)

    async def told(*types: str) -> list[str]:
        ids = await post.happen(*types)
        await post.forwarder.run_once()
        return ids

    def written() -> list[str]:
        return [json.loads(line)["id"] for line in path.read_text().splitlines()]

    first, second = controller("a", mortal), controller("b", post.bench.database)
    ids = await told("crawl.started", "crawl.completed")
    await first.run_once()
    await second.run_once()
    assert sorted(written()) == sorted(ids)

    late = await told("crawl.failed")
    mortal.writes = False
    with pytest.raises(BackendUnavailable):
        await first.run_once()  # it dies after writing the line and before storing the cursor
    await second.run_once()
    assert written()[2:] == late
    await post.bench.jump(LEAD.total_seconds() + 1)
    await second.run_once()
    assert written()[2:] == late * 2  # at least once, under one id

    await second.close()
    mortal.writes = True
    last = await told("crawl.stopped")
    await first.run_once()  # a released lead can be taken over at once
    assert written()[4:] == last


async def test_the_hundred_and_first_webhook_is_refused_also_at_the_same_time(post: Post) -> None:
    for _ in range(MOST_WEBHOOKS - 1):
        await post.hook()
    made = await asyncio.gather(*(post.hook() for _ in range(5)), return_exceptions=True)
    refused = [str(one) for one in made if isinstance(one, TooLarge)]
    assert (len(refused), len(await post.webhooks.all())) == (4, 100)
    assert "the list of webhooks is larger than 100 webhooks; remove one first" in refused[0]
