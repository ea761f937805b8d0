"""Numbered migrations: list them, compare them with those a store has, and find those it lacks."""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered migration of the schema."""

    version: int
    name: str
    sql: str

    @property
    def fingerprint(self) -> str:
        """A hash that distinguishes this migration from another with the same number; comments and whitespace do not
        count."""
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


def differing(dialect: str, applied: dict[int, str | None]) -> int | None:
    """Return the first migration that was applied to a store but is not ours; None if all of them are ours."""
    ours = {step.version: step.fingerprint for step in migrations(dialect)}
    return next((version for version, made in sorted(applied.items()) if made != ours.get(version, made)), None)


def missing(dialect: str, version: int) -> list[Migration]:
    return [step for step in migrations(dialect) if step.version > version]
