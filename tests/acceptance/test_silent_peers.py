"""A fleet whose connections stay open and silent, as behind a router that has forgotten them; new ones work."""

import signal
from pathlib import Path

from tests.support.delay_proxy import delay_proxy
from tests.support.fleet import FIFTH, Fleet
from tests.support.site import Site

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
