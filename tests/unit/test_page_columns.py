"""The join of two crawls on columns of hashes agrees with a plain comparison of dictionaries."""

import random
from typing import Any

from shoal.audit.diff import FIELDS, PageDigests, compare, digest
from shoal.audit.site_store import COMPARED_COLUMNS
from tests.support.effort import times


def rows_of(pages: dict[str, str], first: int) -> list[list[Any]]:
    rows = []
    for number, (url, title) in enumerate(pages.items(), first):
        values = {"number": number, "url": url, "title": title, "duration_ms": random.random()}
        rows.append([values.get(name) for name in COMPARED_COLUMNS])
    return rows


def test_the_join_finds_what_a_plain_comparison_finds() -> None:
    chance = random.Random(7)
    for _ in range(times(50)):
        before, after = (
            {f"/{chance.randrange(30)}": chance.choice("ab") for _ in range(chance.randrange(25))} for _ in range(2)
        )
        rows = rows_of(before, 100), rows_of(after, 500)
        seed = chance.randrange(1 << 60)
        columns = [PageDigests.joined([digest(part[:5], seed), digest(part[5:], seed)]) for part in rows]
        pairs = compare(*columns)
        urls = {row[0]: row[COMPARED_COLUMNS.index("url")] for part in rows for row in part}
        assert [urls[number] for number in pairs.added.tolist()] == [url for url in after if url not in before]
        assert [urls[number] for number in pairs.removed.tolist()] == [url for url in before if url not in after]
        old, new = ([urls[number] for number in numbers.tolist()] for numbers in pairs.changed)
        assert old == new == [url for url in after if url in before and before[url] != after[url]]
        assert pairs.unchanged == sum(before.get(url) == title for url, title in after.items())


def test_when_and_how_fast_a_page_was_fetched_is_no_difference() -> None:
    assert not {"duration_ms", "fetched_at", "bytes", "number", "key"} & set(FIELDS)
