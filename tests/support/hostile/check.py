"""Checks a crawl of the hostile site against its expected result, and describes each violation."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tests.support.hostile.site import HostileSite

Record = dict[str, Any]
FORBIDDEN = ("/private", "/storm", "/never")


def complaints(site: HostileSite, records: Iterable[Record]) -> list[str]:
    """Return an empty list if each page has its expected outcome, no trap exceeded its limit, and no blocked address
    was contacted."""
    found = list(records)
    by_url = {record["url"]: record for record in found}
    return [
        *_repeated(found),
        *_wrong_good(site, by_url),
        *_wrong_bad(site, by_url),
        *_wrong_statuses(site, by_url),
        *_unknown(site, by_url),
        *_trespasses(site),
    ]


def _repeated(records: list[Record]) -> Iterator[str]:
    for url, times in Counter(record["url"] for record in records).items():
        if times > 1:
            yield f"{url} was recorded {times} times"


def _wrong_good(site: HostileSite, records: dict[str, Record]) -> Iterator[str]:
    for url, title in site.good.items():
        record = records.get(url)
        if record is None:
            yield f"{url}: the good page is missing"
        elif record["error"] is not None or record["title"] != title:
            yield f"{url}: {record['title']!r}, {record['error']}, not the title {title!r}"


def _wrong_bad(site: HostileSite, records: dict[str, Record]) -> Iterator[str]:
    for url, code in site.bad.items():
        record = records.get(url)
        if record is None:
            yield f"{url}: the bad page is missing"
        elif record["error"] is None or record["error"]["code"] != code:
            yield f"{url}: status {record['status']}, {record['error']}, not {code}"
        elif "127.0.0.1" in record["error"]["message"]:
            yield f"{url}: the message tells the address: {record['error']['message']}"


def _wrong_statuses(site: HostileSite, records: dict[str, Record]) -> Iterator[str]:
    for url, status in site.statuses.items():
        record = records.get(url)
        if record is None:
            yield f"{url}: the answer is missing"
        elif record["error"] is not None or record["status"] != status:
            yield f"{url}: status {record['status']}, {record['error']}, not {status}"


def _unknown(site: HostileSite, records: dict[str, Record]) -> Iterator[str]:
    known = site.good.keys() | site.bad.keys() | site.statuses.keys()
    for url in records.keys() - known:
        if not url.startswith(f"{site.address}/trap/"):
            yield f"{url} was recorded, and nothing leads there"


def _trespasses(site: HostileSite) -> Iterator[str]:
    if site.touched:
        yield f"{site.touched} connections were made to what is inside"
    for trap, requests in site.trapped().items():
        yield f"{trap} cost {requests} requests"
    for target in site.asked:
        if target.startswith(FORBIDDEN):
            yield f"{target} was asked for against robots.txt or out of a script"
