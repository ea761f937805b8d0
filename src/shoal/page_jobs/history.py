"""The results of a policy over time, newest first, and the differences between two of them."""

from dataclasses import dataclass
from typing import Any, Final

from shoal.base.database import Database, Tx
from shoal.base.errors import NotFound
from shoal.base.text import shorten
from shoal.page_jobs.result import StoredResult
from shoal.page_jobs.store import ResultStore

MOST_CHANGES: Final = 1000
ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class DataChange:
    """A value that differs at a path. None: absent before, or absent now."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences between two results."""

    before: StoredResult
    after: StoredResult

    @property
    def html_changed(self) -> bool | None:
        """Return whether the page changed; None if a hash is missing."""
        before, after = self.before.result.html_hash, self.after.result.html_hash
        return None if before is None or after is None else before != after

    def changes(self) -> "list[DataChange]":
        return changes_of(self.before.result.data, self.after.result.data)


class History:
    """The results of policies. Does not check that the policy exists; callers do."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._results = ResultStore()

    async def of_policy(self, policy: str, *, before: int | None = None, limit: int = 50) -> list[StoredResult]:
        return await self._database.read(lambda tx: self._results.of_policy(tx, policy, before, limit))

    async def diff(self, policy: str, before: str | None = None, after: str | None = None) -> Diff:
        """Compare the results of two jobs; by default the last two successes, or `after` with the success before it."""

        async def look(tx: Tx) -> Diff:
            last = await self._one(tx, policy, after) if after else await self._success(tx, policy, None)
            first = await self._one(tx, policy, before) if before else await self._success(tx, policy, last.number)
            return Diff(first, last)

        return await self._database.read(look)

    async def _one(self, tx: Tx, policy: str, job_id: str) -> StoredResult:
        found = await self._results.one_of_policy(tx, policy, job_id)
        if found is None:
            raise NotFound("result", shorten(job_id), "use a job from the policy's results")
        return found

    async def _success(self, tx: Tx, policy: str, before: int | None) -> StoredResult:
        found = await self._results.success_of_policy(tx, policy, before)
        if found is None:
            what = "success of policy" if before is None else "second success of policy"
            raise NotFound(what, policy, "two runs must have succeeded before they can be compared")
        return found


def changes_of(before: Any, after: Any, path: str = "") -> list[DataChange]:
    """Return where two values differ, by path; lists are compared by index."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = [*before, *(name for name in after if name not in before)]
        return _each(before, after, [(f"{path}.{name}" if path else name, name) for name in names])
    if isinstance(before, list) and isinstance(after, list):
        old, new = dict(enumerate(before)), dict(enumerate(after))
        return _each(old, new, [(f"{path}[{place}]", place) for place in range(max(len(before), len(after)))])
    return [] if before == after else [DataChange(path, _known(before), _known(after))]


def _each(before: dict[Any, Any], after: dict[Any, Any], places: list[tuple[str, Any]]) -> list[DataChange]:
    pairs = [(where, before.get(key, ABSENT), after.get(key, ABSENT)) for where, key in places]
    return [change for where, old, new in pairs for change in changes_of(old, new, where)]


def _known(value: Any) -> Any:
    return None if value is ABSENT else value
