"""Listen addresses of controllers: announced by controllers, read by workers, and never fetched."""

import asyncio

import pytest

from shoal.app import App, opened
from shoal.app.address_rule import address_rule_of
from shoal.base.parsing import Address
from shoal.base.settings_loader import load
from shoal.egress import AddressRule
from shoal.hosts import controller_addresses as listeners_module
from shoal.hosts.controller_addresses import ANNOUNCED_FOR, AddressAnnouncer, ControllerAddresses
from shoal.process.child import _begun
from tests.contract.conftest import Bench
from tests.support.controller import served_controller

NETWORKS = {"SHOAL_ALLOW_NETWORKS": "127.0.0.0/8,192.0.2.0/24"}
PATIENCE_SECONDS = 60


def refused(rule: AddressRule, host: str, port: int) -> str | None:
    found = rule.judge(host, port, host)
    return None if found is None else found.code


async def known(bench: Bench) -> set[str]:
    learning = ControllerAddresses(bench.database)
    await learning.run_once()
    return {f"{address}:{port}" for address, port in learning.known}


async def test_a_controller_is_known_while_it_announces_its_address(bench: Bench) -> None:
    announcer = AddressAnnouncer(bench.database, Address("127.0.0.1", 8701))
    other = AddressAnnouncer(bench.database, Address("192.0.2.1", 8702))
    for _ in range(2):
        await announcer.run_once()
        await other.run_once()
    assert await known(bench) == {"127.0.0.1:8701", "192.0.2.1:8702"}
    await announcer.close()
    await announcer.close()
    assert await known(bench) == {"192.0.2.1:8702"}
    await bench.jump(ANNOUNCED_FOR.total_seconds() + 1)
    assert await known(bench) == set()


async def test_the_loopback_of_another_machine_is_not_ours(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(listeners_module, "machine", lambda: "elsewhere")
        for host in ("127.0.0.1", "192.0.2.1"):
            await AddressAnnouncer(bench.database, Address(host, 8701)).run_once()
    assert await known(bench) == {"192.0.2.1:8701"}


async def test_one_that_listens_everywhere_is_known_by_every_address_of_its_machine(bench: Bench) -> None:
    await AddressAnnouncer(bench.database, Address("", 8701)).run_once()
    assert "0.0.0.0:8701" in await known(bench)


async def learned(app: App, port: int) -> None:
    while ("127.0.0.1", port) not in {(str(address), number) for address, number in app.controller_addresses.known}:
        await app.controller_addresses.run_once()


async def test_a_separate_worker_does_not_fetch_from_a_controller(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"DATABASE_URL": sqlite_url, "SHOAL_LISTEN": "127.0.0.1:8700", **NETWORKS}
    async with served_controller(sqlite_url) as shop, opened(load(flags, env={}).settings) as app:
        assert refused(address_rule_of(app.settings), "127.0.0.1", shop.port) is None  # it knows only the settings
        await asyncio.wait_for(learned(app, shop.port), PATIENCE_SECONDS)
        rule = address_rule_of(app.settings, controllers=app.controller_addresses)
        assert refused(rule, "127.0.0.1", shop.port) == "self_connection"
        assert refused(rule, "127.0.0.1", shop.port + 1) is None
        by_name = address_rule_of(app.settings, frozenset({("127.0.0.1", shop.port)}), app.controller_addresses)
        assert refused(by_name, "127.0.0.1", shop.port) is None  # as with a controller's own workers
        for name, value in flags.items():
            monkeypatch.setenv(name, value)
        async with _begun() as child:
            assert refused(
                address_rule_of(child.settings, controllers=child.controller_addresses), "127.0.0.1", shop.port
            )
    async with opened(load(flags, env={}).settings) as app:  # it announced that it stopped
        await app.controller_addresses.run_once()
        assert app.controller_addresses.known == frozenset()
