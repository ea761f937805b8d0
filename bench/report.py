"""Benchmark reports: Markdown tables, JSON, docs/benchmarks.md, and a description of the machine.

Figures are medians, and tables are compared by ratios. A report contains neither the name of the machine nor paths on
it.
"""

import json
import os
import platform
import re
import sqlite3
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from shoal import __version__

Cell = str | int | float | None

INTRODUCTION = """# Benchmarks

This page is written by `make bench T="NAME --write"`; do not edit it by hand. CPU is user and system time of the
whole process tree. Times differ from machine to machine and from minute to minute: compare only ratios within one
table, and treat ratios below two as noise.
"""


@dataclass
class Table:
    """Rows under one heading, with notes that explain them."""

    title: str
    columns: Sequence[str]
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [f"### {self.title}", "", _line(self.columns), _line(["---"] * len(self.columns))]
        lines += [_line([show(cell) for cell in row]) for row in self.rows]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"


@dataclass
class Report:
    """The results of one benchmark."""

    name: str
    about: str
    tables: list[Table] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)

    def table(self, title: str, *columns: str) -> Table:
        self.tables.append(Table(title, columns))
        return self.tables[-1]

    def markdown(self) -> str:
        ran = f"Measured on {datetime.now(UTC):%Y-%m-%d}: {', '.join(dict.fromkeys([*machine(), *self.versions]))}."
        tables = "\n".join(table.markdown() for table in self.tables)
        return f"## {self.name}\n\n{self.about}\n\n{ran}\n\n{tables}"


def show(cell: Cell) -> str:
    """Format a number with a sensible number of digits."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}" if abs(cell) < 10 else f"{cell:.1f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def ratio(one: float, other: float) -> float | None:
    return one / other if other else None


def machine() -> list[str]:
    """Describe the environment of a run: Shoal, cores, processor, kernel, Python, SQLite."""
    return [
        f"Shoal {__version__}{_revision()}",
        f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores",
        _processor(),
        f"{platform.system()} {platform.release().partition('-')[0]}",
        f"Python {platform.python_version()}",
        f"SQLite {sqlite3.sqlite_version}",
    ]


def write_json(reports: Sequence[Report], file: Path) -> None:
    found = {"measured_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "machine": machine()}
    file.write_text(json.dumps(found | {"reports": [asdict(report) for report in reports]}, indent=1) + "\n")


def write_page(reports: Sequence[Report], page: Path) -> None:
    """Put these reports into the page; the sections of other benchmarks stay unchanged."""
    sections = _sections(page.read_text("utf-8")) if page.exists() else {}
    sections |= {report.name: report.markdown() for report in reports}
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join([INTRODUCTION, *(sections[name] for name in sorted(sections))]), "utf-8")


def _sections(text: str) -> dict[str, str]:
    pieces = re.split(r"^## (\w+)\n", text, flags=re.MULTILINE)[1:]
    return {name: f"## {name}\n{body.rstrip()}\n" for name, body in zip(pieces[::2], pieces[1::2], strict=True)}


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _revision() -> str:
    root = Path(__file__).resolve().parent.parent
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f" at {done.stdout.strip()}"


def _processor() -> str:
    try:
        model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        model = None
    return " ".join(model[1].split()) if model else platform.machine()
