"""The contracts of the stores of pages and of the results of page jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.base.database import Tx
from shoal.base.ids import JobId
from shoal.base.url import Url
from shoal.pages.page import Page
from shoal.pages.result import Result, Stored
from shoal.queue.job import Holder
from shoal.queue.states import JobState


@dataclass(frozen=True, slots=True)
class Validators:
    """What a server said about a page, and what decides whether it may be asked for again under that condition. Of a
    page that cannot be, only where it was found and its links are known."""

    key: int
    chk: int
    depth: int
    etag: str | None
    last_modified: str | None
    links: bytes | None

    @property
    def is_condition(self) -> bool:
        return self.etag is not None or self.last_modified is not None


@dataclass(frozen=True, slots=True)
class PageFilter:
    """Which pages are looked for: those that have all that is named here."""

    statuses: range | None = None
    error: str | None = None  # a code, or ANY_ERROR


ANY_ERROR = "any"


class PageStore(Protocol):
    async def insert(self, tx: Tx, crawl: int, pages: Sequence[tuple[int, int, Page]]) -> int:
        """Keep these pages, each under its URL's key; how many were new. A page that is there stays as it is."""
        ...

    async def after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, Page]]:
        """Pages in the order in which they were stored, after the page with that number."""
        ...

    async def some_after(
        self, tx: Tx, crawl: int, number: int, limit: int, wanted: PageFilter
    ) -> list[tuple[int, Page]]:
        """Those of the pages of `after` that are looked for. It may read many more than it gives."""
        ...

    async def links_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, int, bytes]]:
        """Number, key and link blob of pages, in the order of `after`; `shoal.pages.links` reads them, and walks the
        whole graph. Pages that were not parsed have no blob and are not among them."""
        ...

    async def validators(self, tx: Tx, crawl: int, keys: list[int]) -> list[Validators]:
        """The pages with these keys, with what servers said about those that may be asked for under a condition: pages
        that gave an answer of their own, without a redirect. Two pages may share a key."""
        ...

    async def of_keys(
        self, tx: Tx, crawl: int, keys: list[int], *, details: bool = False
    ) -> list[tuple[int, int, Page]]:
        """Pages with these keys, each with its key and check; with their details if those are wanted."""
        ...

    async def urls_of(self, tx: Tx, crawl: int, keys: list[int]) -> dict[int, Url]:
        """The URLs of the pages with these keys. A key of which there is no page is not among them."""
        ...

    async def details_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, bytes]]:
        """The details of pages, each with its page's number, in the order of `after`; `shoal.extract.details.unpacked`
        reads them. Pages of a crawl that did not ask for them, and pages that gave no answer, have none."""
        ...


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A locked job, as whoever takes its result must see it."""

    id: JobId
    kind: str
    run_id: str | None
    epoch: int
    owner: str
    attempts: int
    max_attempts: int
    rule_set: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class NewResult:
    """A result to be stored."""

    job_id: JobId
    epoch: int
    group_id: str | None
    state: JobState
    digest: str
    result: Result


class ResultStore(Protocol):
    async def runs_of(self, tx: Tx, job_ids: list[JobId]) -> list[tuple[str, str | None]]:
        """Kind and run of these jobs. Nothing is locked: a job never changes its run."""
        ...

    async def lock(self, tx: Tx, job_ids: list[JobId]) -> list[HeldJob]:
        """Those of the jobs that are leased just now; they stay so until this transaction ends or moves them. They are
        locked in the order of their ids, after their runs."""
        ...

    async def answers(self, tx: Tx, owner: str, holders: list[Holder]) -> dict[Holder, tuple[str, JobState]]:
        """For each of these grants that was this owner's and had a result: the digest of that, and where it sent the
        job."""
        ...

    async def insert(self, tx: Tx, results: Sequence[NewResult]) -> None:
        """Keep these results. There is at most one for each grant."""
        ...

    async def of_group(self, tx: Tx, group_id: str, after: int, limit: int) -> list[Stored]:
        """The last word on each ended job of a group, in the order in which they were stored, after that number: none
        of a job that will be tried again."""
        ...

    async def of_job(self, tx: Tx, job_id: JobId) -> list[Stored]:
        """Every result of a job, oldest first."""
        ...
