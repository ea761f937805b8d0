"""Journal files: each entry is written once to the file of its project, in order, even after write errors."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.base.ids import CrawlId
from shoal.base.settings_loader import load
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.journal import JournalFiles
from shoal.crawl.journal_messages import JournalEntry
from tests.contract.conftest import SITE, Bench


class Files:
    """A sink for journal lines that can act as a full disk."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {}
        self.is_full = False
        self.read_only: set[str] = set()

    def append(self, project: str, lines: list[bytes]) -> None:
        if self.is_full:
            raise OSError("no space left")
        if project in self.read_only:
            raise PermissionError(f"{project} is read-only")
        self.lines.setdefault(project, []).extend(json.loads(line)["msg"] for line in lines)


@pytest.fixture
def files() -> Files:
    return Files()


def journal_files(bench: Bench, files: Files) -> JournalFiles:
    return JournalFiles(bench.database, files.append)


async def submit(bench: Bench, name: str, project: str) -> int:
    config = CrawlConfig(seeds=[f"{SITE}/"], sitemap="off", project=project)
    return (await bench.crawls.submit(config, crawl_id=CrawlId(name))).number


async def test_lines_are_filed_once_by_project(bench: Bench, files: Files) -> None:
    await submit(bench, "one", "shop")
    await submit(bench, "two", "news")
    assert (await journal_files(bench, files).run_once()).did == "wrote 2 lines"
    await bench.crawls.pause("one")
    await journal_files(bench, files).run_once()
    assert files.lines == {"shop": ["Waiting for a worker", "Paused (on request)"], "news": ["Waiting for a worker"]}
    assert (await journal_files(bench, files).run_once()).did == ""


async def test_two_at_once_file_each_line_once(bench: Bench, files: Files) -> None:
    number = await submit(bench, "one", "shop")
    lines = [JournalEntry("x", str(count)) for count in range(50)]
    await bench.database.run(lambda tx: bench.journal.write(tx, number, lines))
    await asyncio.gather(*[journal_files(bench, files).run_once() for _ in range(3)])
    assert files.lines["shop"][1:] == [str(count) for count in range(50)]


async def test_a_full_disk_loses_nothing(bench: Bench, files: Files) -> None:
    await submit(bench, "one", "shop")
    files.is_full = True
    with pytest.raises(OSError, match="no space left"):
        await journal_files(bench, files).run_once()
    files.is_full = False
    await journal_files(bench, files).run_once()
    assert files.lines == {"shop": ["Waiting for a worker"]}


async def test_a_project_whose_file_cannot_be_written_keeps_no_other_waiting(
    bench: Bench, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.crawl.journal.CRAWLS_AT_ONCE", 2)
    for name, project in (("one", "shop"), ("two", "shop"), ("three", "news"), ("four", "shop"), ("five", "docs")):
        await submit(bench, name, project)
    files.read_only.add("shop")
    chore = journal_files(bench, files)
    for _ in range(3):
        with pytest.raises(PermissionError, match="shop is read-only"):
            await chore.run_once()
    assert files.lines == {"news": ["Waiting for a worker"], "docs": ["Waiting for a worker"]}
    files.read_only.clear()
    await chore.run_once()
    assert files.lines["shop"] == ["Waiting for a worker"] * 3


async def test_lines_that_are_gone_are_not_waited_for(bench: Bench, files: Files) -> None:
    number = await submit(bench, "one", "shop")
    await bench.sql("DELETE FROM crawl_line")
    assert (await journal_files(bench, files).run_once()).did == ""
    await bench.database.run(lambda tx: bench.journal.write(tx, number, [JournalEntry("x", "later")]))
    await journal_files(bench, files).run_once()
    assert files.lines == {"shop": ["later"]}


async def test_a_project_log_is_rotated_at_its_size_and_only_so_many_are_kept(bench: Bench, tmp_path: Path) -> None:
    flags = {"SHOAL_PROJECT_LOGS": str(tmp_path), "SHOAL_PROJECT_LOG_SIZE": "1KB", "SHOAL_PROJECT_LOGS_KEPT": "2"}
    there = replace(bench, defaults=load(flags, env={}).settings)
    number = await submit(there, "one", "shop")
    for count in range(5):
        entries = [JournalEntry("x", str(count) * 1000)]
        await there.database.run(lambda tx, entries=entries: there.journal.write(tx, number, entries))
        await there.app.chores.journal_files.run_once()
    assert first_letters(tmp_path) == {"shop.log.1": "4", "shop.log.2": "3"}


def first_letters(folder: Path) -> dict[str, str]:
    return {path.name: json.loads(path.read_text())["msg"][0] for path in folder.glob("shop*")}
