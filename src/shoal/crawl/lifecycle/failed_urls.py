"""Filters for a crawl's failed URLs, which retries use, and the failures of its seeds."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from msgspec import Meta, Struct, field

from shoal.base.request_form import Check, Form, describe
from shoal.base.text import shorten
from shoal.base.url import Url
from shoal.crawl.crawl import Count, Counts
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import Settled, UrlKind
from shoal.pages.page import count_responses
from shoal.pages.store import DroppedPage, FailedPage
from shoal.web.error_codes import PAGE_ERRORS

Words = Annotated[list[Annotated[str, Meta(min_length=1, max_length=50)]], Meta(max_length=100)]
Pattern = Annotated[str, Meta(min_length=1, max_length=1000)]
MAX_LISTED = 3  # seeds named in an error message
_STATUS = re.compile(r"[45](\d\d|xx)|error")


def taken_back(dropped: Sequence[DroppedPage]) -> Counts:
    """Return the counts of these pages as negative numbers, to subtract them."""
    responses = count_responses(page.status for page in dropped)
    return Counts(
        pages=-sum(page.status is not None for page in dropped),
        errors=-sum(page.error_code is not None for page in dropped),
        bytes=-sum(page.bytes for page in dropped),
        responses={kind: -count for kind, count in responses.items()},
    )


class FailedSeed(Struct, frozen=True):
    """A seed that returned no page, and the reason: its status, its error, or why it was skipped."""

    url: str
    status: int | None = None
    error_code: str | None = None
    error_message: str | None = None

    @classmethod
    def of(cls, seed: Mapping[str, Any]) -> Self:
        """Parse the seed from an API response."""
        error = seed["error"] or {"code": None, "message": None}
        return cls(seed["url"], seed["status"], error["code"], error["message"])

    @classmethod
    def settled(cls, done: Settled) -> Self | None:
        """Return the failed seed of this outcome; None if the outcome is not a failure or its URL is not a seed."""
        task, page = done.task, done.page
        if task.depth > 0 or task.kind is not UrlKind.PAGE or done.fate is Fate.OPEN:
            return None
        if page is not None:
            if page.status is not None and page.status < 400:
                return None
            return cls(task.url, page.status, page.error_code, page.error_message)
        return cls(task.url, None, done.fate.word, f"skipped ({done.fate.word})") if done.fate.skipped else None

    def words(self) -> str:
        if self.status is not None:
            return f"{self.url} answered {self.status}"
        if self.error_code == Fate.SKIPPED_ROBOTS.word:
            return f"{self.url}: robots.txt disallows it, see `shoal robots test URL`"
        return f"{self.url}: {(self.error_message or '').rstrip('.')}"


def in_words(failed: Sequence[FailedSeed]) -> str:
    """Describe why these seeds returned no page: the reasons of the first few seeds, and the number of the rest."""
    listed = [seed.words() for seed in failed[:MAX_LISTED]]
    more = len(failed) - len(listed)
    return "; ".join([*listed, *([f"and {more:,} more"] if more else [])])


def known_statuses(words: list[str]) -> list[str]:
    for word in words:
        if not _STATUS.fullmatch(word):
            raise ValueError(
                f"{shorten(word)!r} is not the status of a failure; "
                "use a status such as 503 or 5xx, or error for URLs without a response"
            )
    return words


def known_errors(words: list[str]) -> list[str]:
    for word in words:
        if not any(_names(word, code) for code in PAGE_ERRORS):
            raise ValueError(f"{shorten(word)!r} is not an error code of a page; use one such as dns_error or timeout")
    return words


def check_pattern(pattern: str | None) -> str | None:
    """Return the pattern. Raise if matching it could take long, because a controller matches it against every failed
    URL."""
    if pattern is not None:
        from shoal.extract.selectors import check_regex  # rarely needed: keep this import out of start-up

        check_regex(pattern)
    return pattern


class FailedUrls(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A filter for failed URLs. A URL must match every field that is set; if no field is set, all URLs match."""

    status: Annotated[Words, describe("Statuses such as 503 or 5xx; `error` matches URLs without a response.")] = field(
        default_factory=list
    )
    error: Annotated[Words, describe("Error codes, or a word in them, such as `timeout` or `tls`.")] = field(
        default_factory=list
    )
    like: Annotated[Pattern | None, describe("Regular expression (RE2) that the URL must match.")] = None
    limit: Annotated[Count | None, describe("Maximum number of URLs.")] = None

    checks: ClassVar[Mapping[str, Check]] = {
        "status": known_statuses,
        "error": known_errors,
        "like": check_pattern,
    }

    def __contains__(self, page: FailedPage) -> bool:
        return (
            (not self.status or _is_one_of(page.status, self.status))
            and (not self.error or any(_names(word, page.error_code or "") for word in self.error))
            and (self.like is None or _is_in(self.like, page.url))
        )


def _is_in(pattern: str, url: Url) -> bool:
    from shoal.extract.selectors import regex

    return regex(pattern).search(url) is not None


def _is_one_of(status: int | None, words: list[str]) -> bool:
    return "error" in words if status is None else str(status) in words or f"{status // 100}xx" in words


def _names(word: str, code: str) -> bool:
    """Return whether the word is the code or one of its parts."""
    return word == code or word in code.split("_")
