"""A fleet whose connections stay open and silent, as behind a router that has forgotten them; new ones work."""

import signal
from pathlib import Path

import pytest

from shoal.base.clock import SystemClock
from tests.support.delay_proxy import DelayProxy, delay_proxy
from tests.support.fleet import FIFTH, Fleet, wait_for
from tests.support.site import Site

CLOCK = SystemClock()
QUICK_ANSWERS = {"SHOAL_DATABASE_CONNECT_TIMEOUT": "500ms", "SHOAL_DATABASE_TIMEOUT": "1s", "SHOAL_LANES": "sql"}


def test_a_fleet_goes_on_when_all_its_connections_to_the_database_fall_silent(
    postgres_url: str, tmp_path: Path
) -> None:
    with (
        delay_proxy(postgres_url) as proxy,
        Site(pages=60) as site,
        Fleet(tmp_path, proxy.url, **FIFTH, **QUICK_ANSWERS) as fleet,
    ):
        controller, worker = fleet.controller(), fleet.worker()
        site.allowed = 20
        crawl_id = fleet.submit(site)
        site.wait_for_pages(10)
        proxy.fall_silent()
        site.allowed = None
        fleet.wait_ready()
        fleet.wait_for_state(crawl_id, "completed")
        assert site.pages_asked == 60
        for process in (worker, controller):
            proxy.fall_silent()
            process.send(signal.SIGTERM)
            assert process.wait(15) == 0


@pytest.mark.exhaustive
def test_statements_in_flight_on_connections_that_fall_silent_hold_up_a_fleet_for_seconds(
    postgres_url: str, tmp_path: Path
) -> None:
    """With default settings, and with statements of all processes in flight, of which the server never hears."""
    with (
        delay_proxy(postgres_url) as proxy,
        Site(pages=400, delay=0.4) as site,
        Site(pages=1, host="127.0.0.2") as other,
        Fleet(tmp_path, proxy.url, SHOAL_LANES="sql") as fleet,
    ):
        controller, worker = fleet.controller(), fleet.worker()
        fleet.submit(site)
        fleet.fetch([site.url(number) for number in range(200, 400)])
        site.wait_for_pages(20)
        lose_statements(proxy, 3)
        silent_at = CLOCK.monotonic()
        fleet.wait_ready()
        assert CLOCK.monotonic() - silent_at < 15
        fleet.submit(other)
        other.wait_for_pages(1)
        assert CLOCK.monotonic() - silent_at < 20
        site.wait_for_pages(site.pages_asked + 40)
        for process, statements in ((worker, 3), (controller, 1)):
            lose_statements(proxy, statements)
            process.send(signal.SIGTERM)
            assert process.wait(30) == 0


def lose_statements(proxy: DelayProxy, count: int) -> None:
    """Let all connections fall silent while several statements are on their way to the server."""
    proxy.delay_seconds = 1.0
    wait_for(lambda: proxy.held >= count, "statements in flight")
    proxy.fall_silent()
    proxy.delay_seconds = 0.0
