"""Finds out which pages of two crawls differ, on columns of hashes: 32 bytes per page, however large it is. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from shoal.audit.site_store import COMPARED_COLUMNS
from shoal.pages.page import NOT_MODIFIED

FIELDS: Final = (
    *("status", "error_code", "final_url", "content_type", "title", "description", "canonical", "robots"),
    *("lang", "h1", "word_count", "content_hash"),
)
"""The fields that are compared: what a page says and how it answers, not how long it took, when, or on which path it
was found. The fields of `data` are compared as well, each under its own name."""
NAMES: Final = {"error_code": "error"}
"""Fields whose public name differs."""

_NUMBER, _URL, _DATA = (COMPARED_COLUMNS.index(name) for name in ("number", "url", "data"))
_PLACES: Final = tuple(COMPARED_COLUMNS.index(name) for name in FIELDS)
_STATUS: Final = FIELDS.index("status")
_CONFIRMED: Final = 200  # only pages with this status are requested with a condition
_DIGEST = np.dtype("S16")


@dataclass(frozen=True, slots=True)
class PageDigests:
    """The pages of a crawl in storage order: their numbers, a digest of each URL, and one of the compared fields."""

    numbers: NDArray[np.int64]
    urls: NDArray[np.bytes_]
    contents: NDArray[np.uint64]

    @classmethod
    def joined(cls, parts: "Sequence[PageDigests]") -> "PageDigests":
        empty = digest([], 0)
        parts = [empty, *parts]
        return cls(
            np.concatenate([part.numbers for part in parts]),
            np.concatenate([part.urls for part in parts]),
            np.concatenate([part.contents for part in parts]),
        )


@dataclass(frozen=True, slots=True)
class PagePairs:
    """Page numbers: `added` of the later crawl, `removed` of the earlier one, `changed` pairs of both."""

    added: NDArray[np.int64]
    removed: NDArray[np.int64]
    changed: tuple[NDArray[np.int64], NDArray[np.int64]]
    unchanged: int


def digest(rows: Sequence[Sequence[Any]], seed: int) -> PageDigests:
    """Return the columns of rows of `COMPARED_COLUMNS`. A secret seed keeps sites from constructing collisions."""
    count = len(rows)
    return PageDigests(
        np.fromiter((row[_NUMBER] for row in rows), np.int64, count),
        np.fromiter((xxh3_128_digest(row[_URL].encode("utf-8", "replace"), seed) for row in rows), _DIGEST, count),
        np.fromiter(
            (
                xxh3_64_intdigest(orjson.dumps([values_of(row), data_of(row)], option=orjson.OPT_SORT_KEYS), seed)
                for row in rows
            ),
            np.uint64,
            count,
        ),
    )


def compare(before: PageDigests, after: PageDigests) -> PagePairs:
    """Join the pages of two crawls on their URLs."""
    order = np.argsort(before.urls, kind="stable")
    if not len(order):
        return PagePairs(after.numbers, before.numbers, (after.numbers[:0], after.numbers[:0]), 0)
    places = np.minimum(np.searchsorted(before.urls, after.urls, sorter=order), len(order) - 1)
    matches = order[places]
    found = before.urls[matches] == after.urls
    gone = np.ones(len(order), bool)
    gone[matches[found]] = False
    differs = found & (before.contents[matches] != after.contents)
    changed = (before.numbers[matches[differs]], after.numbers[differs])
    return PagePairs(after.numbers[~found], before.numbers[gone], changed, int(np.count_nonzero(found & ~differs)))


def values_of(row: Sequence[Any]) -> list[Any]:
    """Return the compared fields of a row of `COMPARED_COLUMNS`. A 304 counts as the status of the page that it
    confirms."""
    values = [row[place] for place in _PLACES]
    if values[_STATUS] == NOT_MODIFIED:
        values[_STATUS] = _CONFIRMED
    return values


def data_of(row: Sequence[Any]) -> dict[str, Any]:
    """Return the extracted data of a page by field."""
    return orjson.loads(row[_DATA]) if row[_DATA] else {}


def in_text(value: Any) -> str | int | None:
    """Return a value of `data` as a diff shows it: lists, objects and fractions as JSON."""
    return value if value is None or isinstance(value, str | int) else orjson.dumps(value).decode()


def url_of(row: Sequence[Any]) -> str:
    return str(row[_URL])


def number_of(row: Sequence[Any]) -> int:
    return int(row[_NUMBER])
