"""The database that each acceptance test runs beside.

The contract suites hold every statement to both databases. Tests with real processes are about the processes, so each
of them runs beside one database, half of them beside either; with SHOAL_TEST_EFFORT above 1 all run beside both.
"""

from pathlib import Path
from zlib import crc32

import pytest

from tests.support.effort import times

DATABASES = ("sqlite", "postgres")
FOLDER = Path(__file__).parent
BESIDE_BOTH = {"test_chaos", "test_fleet_faults"}  # deaths and faults: what is lost depends on the database


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if times(10) > 10:
        return
    others = [item for item in items if FOLDER in item.path.parents and _is_beside_the_other(item)]
    if others:
        config.hook.pytest_deselected(items=others)
        dropped = set(others)
        items[:] = [item for item in items if item not in dropped]


def _is_beside_the_other(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec") or item.path.stem in BESIDE_BOTH:
        return False
    database = item.callspec.params.get("store_url")
    return database is not None and database != DATABASES[crc32(item.originalname.encode()) % 2]
