"""Named queries: every SQL text lives in a `.sql` file with its name and a sentence, and is looked up by that name.

    -- name: lease_jobs
    -- Grant up to :limit due jobs to :holder.
    UPDATE …

The file is in the folder of the module that uses it: `store.sql` serves both dialects, `store.sqlite.sql` and
`store.postgres.sql` only one. A file for both is written for PostgreSQL; for SQLite, three things are replaced:

    id = ANY(:ids::text[])      id IN (SELECT value FROM json_each(:ids))
    FOR UPDATE, FOR SHARE …     nothing: SQLite has one writer at a time
    ::type                      nothing

Parameters are written `:name`. A query that PostgreSQL should run once for a whole batch is marked `-- batch: arrays`:
its parameters are then arrays, one element per row. SQLite runs the query with the same name row by row, without extra
cost. If a query is on a hot path, it is marked `-- rows: key chk fate`: in both dialects, its rows are passed as tuples
of these values.

PostgreSQL keeps its plans, even those made for empty tables, so every query allows only one access path to its rows.
Decision 0029 has the idioms: scalar subqueries and `LATERAL (… OFFSET 0)` instead of joins, `CASE WHEN state = …`,
`= ANY(ARRAY[…])`.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from shoal.base.errors import SchemaMismatch

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
# Matches a parameter, but not a `::cast`, and nothing inside a string or a comment.
_TOKEN = re.compile(r"'(?:[^']|'')*'|--[^\n]*|::\w+|:([a-z_][a-z0-9_]*)")

_FOR_SQLITE = (
    (re.compile(r"= ANY ?\(:(\w+)::\w+\[\]\)"), r"IN (SELECT value FROM json_each(:\1))"),
    (re.compile(r"\s+FOR (?:NO KEY )?(?:UPDATE|SHARE)(?: OF \w+)?(?: SKIP LOCKED)?\b"), ""),
    (re.compile(r"::\w+(?:\[\])?"), ""),
)


class Query(Struct, frozen=True):
    """One named query, prepared for its dialect."""

    name: str
    about: str
    sql: str
    parameters: tuple[str, ...]
    arrays: bool
    tuples: bool

    def ordered(self, values: dict[str, Any]) -> tuple[Any, ...]:
        return tuple([values[name] for name in self.parameters])

    def rows(self, given: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """Return the rows of a batch, each in the order of the parameters."""
        return given if self.tuples else [self.ordered(row) for row in given]


class Queries(dict[str, Query]):
    """The queries of one dialect, by name. A query is prepared at its first use, because a process uses few of them."""

    def __init__(self, texts: Mapping[str, str], dialect: str) -> None:
        self._texts = texts
        self._dialect = dialect

    def __missing__(self, name: str) -> Query:
        self[name] = query = _query(name, self._texts[name], self._dialect)
        return query

    def all(self) -> dict[str, Query]:
        return {name: self[name] for name in self._texts}


@cache
def load(dialect: str) -> Queries:
    """Return the queries of one dialect."""
    found: dict[str, str] = {}
    for path in files(dialect):
        pieces = _NAME.split(Path(path).read_text(encoding="utf-8"))[1:]
        for name, body in zip(pieces[::2], pieces[1::2], strict=True):
            if name in found:
                raise ValueError(f"query {name} is defined twice")
            found[name] = body
    return Queries(found, dialect)


def files(dialect: str) -> list[str]:
    """Return the files with queries of a dialect: those in the packages of `shoal` and in the packages within them."""
    folders = _subfolders(str(Path(__file__).parents[2]))
    folders += [below for folder in folders for below in _subfolders(folder)]
    names = [entry.path for folder in folders for entry in os.scandir(folder) if entry.name.endswith(".sql")]
    other = ".postgres.sql" if dialect == "sqlite" else ".sqlite.sql"
    return sorted(name for name in names if not name.endswith(other))


def _subfolders(folder: str) -> list[str]:
    return [entry.path for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("__")]


def _query(name: str, body: str, dialect: str) -> Query:
    mark = "$"
    if dialect == "sqlite":
        mark = "?"
        for pattern, replacement in _FOR_SQLITE:
            body = pattern.sub(replacement, body)
    lines = body.strip().splitlines()
    comments = [line[2:].strip() for line in lines if line.startswith("--")]
    sql = "\n".join(line for line in lines if not line.startswith("--")).strip().rstrip(";")
    names = [name for comment in comments if comment.startswith("rows:") for name in comment.split()[1:]]
    tuples = bool(names)
    arrays = tuples or "batch: arrays" in comments
    about = " ".join(comment for comment in comments if not comment.startswith(("batch:", "rows:")))

    def place(match: re.Match[str]) -> str:
        parameter = match[1]
        if parameter is None:
            return match[0]
        if parameter not in names:
            names.append(parameter)
        return f"{mark}{names.index(parameter) + 1}"

    sql = _TOKEN.sub(place, sql)
    return Query(name, about, sql, tuple(names), arrays, tuples)


class Migration(Struct, frozen=True):
    """One numbered migration of the schema."""

    version: int
    name: str
    sql: str

    @property
    def fingerprint(self) -> str:
        """A hash that distinguishes this migration from a different one with the same number. Comments and whitespace
        do not change it."""
        return _fingerprint(self.sql)


@cache
def _fingerprint(sql: str) -> str:
    bare = " ".join(re.sub(r"--[^\n]*", "", sql).split())
    return hashlib.sha256(bare.encode()).hexdigest()[:16]


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """Return all migrations of one dialect, in order."""
    folder = Path(__file__).parent / "migrations" / dialect
    steps = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if match:
            steps.append(Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    return tuple(steps)


def newest(dialect: str) -> int:
    return migrations(dialect)[-1].version


def check_schema(
    dialect: str, store: str, applied: dict[int, str | None], unreleased_fix: str, *, upgrade: bool
) -> None:
    """Raise `SchemaMismatch` if the applied migrations and their fingerprints are those of a newer or an unreleased
    version of Shoal, or if they are those of an older version and `upgrade` is False."""
    found, wanted = max(applied, default=0), newest(dialect)
    if found > wanted:
        raise SchemaMismatch(store, found, wanted, "update Shoal")
    ours = {step.version: step.fingerprint for step in migrations(dialect)}
    if any(made != ours.get(version, made) for version, made in applied.items()):
        raise SchemaMismatch(store, found, wanted, unreleased_fix)
    if 0 < found < wanted and not upgrade:
        raise SchemaMismatch(store, found, wanted, "run `shoal db upgrade`")


def missing(dialect: str, version: int) -> list[Migration]:
    return [step for step in migrations(dialect) if step.version > version]
