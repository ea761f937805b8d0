"""The database that a test runs beside.

The contract suites hold every statement to both databases. Tests of processes, of whole crawls and of the API are about
these, so `make test` runs each of them beside one database, half of them beside either; `make test-all` beside both.
So are those whose third store is a frontier on Redis.
"""

from zlib import crc32

import pytest

DATABASES = ("sqlite", "postgres")
FRONTIERS = (*DATABASES, "redis")
FOLDERS = {"acceptance", "packages", "wire"}


def beside_the_other(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that are only in the exhaustive run, because they are run beside the other database."""
    return [item for item in items if _is_beside_the_other(item)]


def _is_beside_the_other(item: pytest.Item) -> bool:
    if item.path.parent.name not in FOLDERS or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    driver = item.callspec.params.get("crawler") or item.callspec.params.get("store")
    if driver in FRONTIERS:
        return bool(driver != _one_of(FRONTIERS, item.name.replace(driver, "")))
    database = item.callspec.params.get("store_url")
    return database is not None and database != _one_of(DATABASES, item.originalname)


def _one_of(drivers: tuple[str, ...], name: str) -> str:
    return drivers[crc32(name.encode()) % len(drivers)]
