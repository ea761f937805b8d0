"""Count pages by the class of their HTTP status."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

ResponseClass = Literal["2xx", "3xx", "4xx", "5xx", "none"]

CLASSES: Final[tuple[ResponseClass, ...]] = ("2xx", "3xx", "4xx", "5xx", "none")
UNCHANGED: Final = "unchanged"
_BY_DIGIT: Final[dict[int, ResponseClass]] = {2: "2xx", 3: "3xx", 4: "4xx"}


def response_class(status: int | None) -> ResponseClass:
    """Return the class of a status; `none` without an HTTP response. An unknown class counts as 5xx (RFC 9110, section
    15)."""
    return "none" if status is None else _BY_DIGIT.get(status // 100, "5xx")


def count_responses(statuses: Iterable[int | None]) -> dict[ResponseClass, int]:
    """Count statuses by class; every class is present in the result."""
    counts = dict.fromkeys(CLASSES, 0)
    for status in statuses:
        counts[response_class(status)] += 1
    return counts


def with_unchanged(responses: Mapping[ResponseClass, int], unchanged: int) -> dict[str, int]:
    """Return the counts as people see them. `unchanged`: how many of the 3xx confirmed a page of the previous crawl
    (304)."""
    counts = {"2xx": responses["2xx"], UNCHANGED: unchanged, "3xx": max(0, responses["3xx"] - unchanged)}
    return counts | {kind: responses[kind] for kind in CLASSES[2:]}


def in_words(responses: Mapping[ResponseClass, int], unchanged: int = 0) -> str:
    """Return a summary such as `2xx 7, unchanged 3, no response 2`; empty if all counts are zero."""
    counts = with_unchanged(responses, unchanged)
    return ", ".join(
        f"{'no response' if kind == 'none' else kind} {count:,}" for kind, count in counts.items() if count
    )
