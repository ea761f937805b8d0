"""Import policies from a file: validate the lines one by one, then store all policies, none, or only the valid ones."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import IO

from msgspec import json

from shoal.access.audit_log import AuditHook, no_audit
from shoal.base.database import Database, Tx
from shoal.base.errors import ShoalError
from shoal.base.ids import ids_behind, new_id
from shoal.plan.policies import Policies, new_policy
from shoal.plan.policy import PolicyForm
from shoal.plan.policy_file import PolicyFileRow
from shoal.plan.store import NewPolicy, PolicyStore

BATCH = 1_000
PAUSE = 100  # lines validated per batch, in a thread, so that the event loop stays responsive
MAX_LISTED = 100  # invalid lines
MAX_BAD = 1_000  # invalid lines after which the rest of the file is not read
MAX_BLANK = 1_000_000  # blank lines; further blank lines are invalid
IN_MEMORY = 8_000_000


@dataclass(slots=True)
class ImportSummary:
    """The result of an import."""

    made: int = 0
    bad: int = 0
    blank: int = 0
    last: int = 0  # number of the last invalid line
    problems: list[tuple[int, str]] = field(default_factory=list)  # line number and problem of the first invalid lines


class PolicyImporter:
    def __init__(self, database: Database, policies: Policies) -> None:
        self._database = database
        self._store = PolicyStore()
        self._policies = policies

    async def take(
        self,
        rows: Iterator[PolicyFileRow],
        *,
        skip_bad: bool,
        first: str | None = None,
        audit: AuditHook = no_audit,
        check_caller: Callable[[], None] = lambda: None,
    ) -> ImportSummary:
        """Store the policies of the rows in one commit. One invalid line rejects the whole file, unless `skip_bad` is
        set; `MAX_BAD` invalid lines always reject it. The policies' ids are derived from `first` and the line number,
        so importing the same file again with the same `first` adds nothing. `check_caller` is called every `PAUSE`
        lines and raises an error if nobody waits for the result any more.

        As much as possible is done before the commit, because it blocks all other writers of a SQLite store.
        """
        summary = ImportSummary()
        now = await self._database.read(self._store.now)
        with tempfile.SpooledTemporaryFile(IN_MEMORY) as good:
            count = await self._judge(rows, good, summary, now, ids_behind(first or new_id("pol")), check_caller)
            if summary.bad >= MAX_BAD:
                summary.problems.append((summary.last, f"is the {MAX_BAD:,}th invalid line: the rest was not read"))
            elif count and (skip_bad or not summary.bad):
                await self._database.run(lambda tx: self._keep(tx, good, audit))
                summary.made = count
        return summary

    async def _judge(
        self,
        rows: Iterator[PolicyFileRow],
        good: IO[bytes],
        summary: ImportSummary,
        now: int,
        id_of: Callable[[int], str],
        check_caller: Callable[[], None],
    ) -> int:
        def judge_some() -> tuple[int, int]:
            """Validate the next lines; return how many lines were read and how many of them are valid."""
            read = kept = 0
            for row in islice(rows, PAUSE):
                read += 1
                problem = row.problem or self._problem(row.form)
                if row.form is None and not problem:
                    summary.blank += 1
                    if summary.blank > MAX_BLANK:
                        problem = f"is blank, after {MAX_BLANK:,} other blank lines"
                if problem:
                    summary.bad += 1
                    summary.last = row.line
                    if len(summary.problems) < MAX_LISTED:
                        summary.problems.append((row.line, problem))
                elif row.form is not None:
                    good.write(json.encode(new_policy(row.form, now, id_of(row.line))) + b"\n")
                    kept += 1
                if summary.bad >= MAX_BAD:
                    break
            return read, kept

        count, read = 0, PAUSE
        while read == PAUSE and summary.bad < MAX_BAD:
            check_caller()
            read, kept = await asyncio.to_thread(judge_some)
            count += kept
        return count

    def _problem(self, form: PolicyForm | None) -> str:
        try:
            if form is not None:
                self._policies.judged(form)
            return ""
        except ShoalError as error:
            return error.message

    async def _keep(self, tx: Tx, good: IO[bytes], audit: AuditHook) -> None:
        await audit(tx, "policies.imported", "")
        good.seek(0)
        while lines := list(islice(good, BATCH)):
            await self._store.insert(tx, [_READER.decode(line) for line in lines])


_READER = json.Decoder(NewPolicy)
