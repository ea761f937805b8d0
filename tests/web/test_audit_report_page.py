"""The HTML report in a real browser: it opens from a file, requests nothing, and runs nothing of what pages say."""

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

from shoal.audit.finding import Finding, Severity
from shoal.audit.reports.html import to_html
from shoal.audit.verdict import Outcome
from tests.support.audit_reports import page, report_with, verdict_of


async def test_the_report_opens_offline_and_runs_nothing_of_the_pages(chromium: str, tmp_path: Path) -> None:
    requests: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readline())
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    loads = "".join(
        (
            f'"><img src="{address}/img"><link rel=stylesheet href="{address}/l">',
            f'<script src="{address}/script"></script>',
            f'<style>@import "{address}/css"; body {{ background: url({address}/background) }}</style>',
            f'<svg onload="document.title=1"><iframe src="{address}/frame"></iframe>',
            f"<script>document.title='run'; fetch('{address}/fetch')</script>",
        )
    )
    found = Finding("links", "broken_link", Severity.ERROR, page(loads), 1, {loads: loads})
    report = report_with(verdict_of(Outcome.FAILED, loads), examples={"broken_link": [found]})
    path = tmp_path / "report.html"
    path.write_text(to_html(report), "utf-8")
    seen = await dump_dom(chromium, path.as_uri(), tmp_path)
    server.close()
    assert requests == []
    assert "<title>Audit of https://shop.example/</title>" in seen
    assert "&lt;script&gt;document.title='run'" in seen
    assert "<script" not in seen
    assert len(report.codes) == seen.count("<article")


async def dump_dom(chromium: str, address: str, folder: Path) -> str:
    """Return the document after it has loaded."""
    words = [
        *("--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
        *("--disable-component-update", "--disable-sync", f"--user-data-dir={folder}/profile"),
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
        *("--virtual-time-budget=1000", "--dump-dom", address),
    ]
    process = await asyncio.create_subprocess_exec(chromium, *words, stdout=PIPE, stderr=DEVNULL)
    seen, _ = await asyncio.wait_for(process.communicate(), 60)
    return seen.decode()
