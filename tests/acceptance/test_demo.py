"""`shoal demo` as a process: its output, its crawls, its fleet, and that it leaves nothing behind."""

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from shoal.cli import demo_site as site
from tests.support.patience import with_load

DEADLINE_SECONDS = 120
FIRST = site.build(1)


class Demo:
    """One running demo, in a session of its own so that a Ctrl-C can be sent to all of it."""

    def __init__(self, folder: Path, *words: str, **env: str) -> None:
        self.folder = folder
        self.said: list[str] = []
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal", "demo", *words],
            cwd=folder,
            env=clean | {"TMPDIR": str(folder), "HOME": str(folder), "SHOAL_LISTEN": "127.0.0.1:0"} | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self) -> tuple[str, str]:
        out, err = self.process.communicate(timeout=with_load(DEADLINE_SECONDS))
        return out, "".join(self.said) + err

    def stdout_line(self) -> str:
        return _stream(self.process.stdout).readline()

    def wait_for(self, words: str) -> str:
        """Return the first line on stderr with these words."""
        for line in _stream(self.process.stderr):
            self.said.append(line)
            if words in line:
                return line
        raise AssertionError(f"the demo ended without saying {words!r}: {''.join(self.said)}")

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def left_behind(self) -> list[str]:
        """Files in its temporary folder, and processes that still use it."""
        return [path.name for path in self.folder.glob("shoal-demo-*")] + self.processes()

    def processes(self) -> list[str]:
        """The processes that use its temporary folder, itself among them."""
        return [str(pid) for pid in _processes() if str(self.folder) in _environment(pid)]


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _environment(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""


def read(address: str) -> str:
    with urlopen(address, timeout=10) as response:
        return str(response.read().decode())


def items(address: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(read(address))["items"]
    return found


Start = Callable[..., Demo]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start demos; none is left when a test has failed."""
    demos: list[Demo] = []

    def start(*words: str, **env: str) -> Demo:
        demos.append(Demo(tmp_path, *words, **env))
        return demos[-1]

    yield start
    for demo in demos:
        if demo.process.poll() is None:
            demo.process.terminate()
            demo.finish()


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.exhaustive
def test_the_demo_crawls_and_audits_its_site_and_ends_when_told_to(start: Start) -> None:
    demo = start("--exit", "--fast")
    out, err = demo.finish()
    assert demo.process.returncode == 0, err
    assert out.startswith("Console: http://127.0.0.1:")
    assert len(out.splitlines()) == 1
    assert re.search(r"^Completed: 3\d\d pages \(2xx \d+, .*\), \d errors?, .* in .* s \(.* pages/s\)\.$", err, re.M)
    assert "webhook: crawl.started crl_" in err
    assert "Gate failed:" in err
    assert "/analyses/" not in err  # the console has ended, too
    assert err.endswith("The demo has ended, and its data is removed.\n")
    assert "Traceback" not in err
    assert demo.left_behind() == []


@pytest.mark.exhaustive
def test_the_console_stays_until_ctrl_c_which_leaves_nothing_behind(start: Start) -> None:
    demo = start("--fast")
    address = demo.stdout_line().removeprefix("Console: ").strip()
    page = demo.wait_for("a made-up site").split()[-1]
    demo.wait_for("The console is at")
    assert 'data-state="completed">Completed<' in read(address)
    demo.wait_for("Look at what has changed")
    demo.wait_for("Look at the findings")
    first, second = items(f"{address}api/v1/analyses")[::-1]
    found = {
        code: {one["page"] for one in items(f"{address}api/v1/analyses/{first['id']}/findings?code={code}")}
        for code in {*site.defects(), *site.ELSEWHERE} - {"slow_page"}  # the pages of a fast demo are not
    }
    planted = {code: path for code, (path, _) in site.defects().items()} | site.ELSEWHERE
    assert {code for code, urls in found.items() if page.rstrip("/") + planted[code] not in urls} == set()
    assert second["verdict"]["outcome"] == "failed"
    again = json.loads(read(f"{address}api/v1/crawls/{second['crawl_id']}"))
    assert again["not_modified"] > 200
    demo.interrupt()
    _, err = demo.finish()
    assert demo.process.returncode == 0
    assert "Traceback" not in err
    assert demo.left_behind() == []
    with pytest.raises(URLError):
        read(address)


@pytest.mark.parametrize("words", ["Watch the crawl", "running", pytest.param("", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "sign",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGHUP, marks=pytest.mark.exhaustive),
    ],
)
def test_an_end_in_the_middle_leaves_nothing_behind(start: Start, words: str, sign: signal.Signals) -> None:
    demo = start()
    demo.stdout_line()
    if words:
        demo.wait_for(words)
    demo.process.send_signal(sign)
    _, err = demo.finish()
    assert "Traceback" not in err
    assert demo.left_behind() == []


@pytest.mark.parametrize("words", ["running", pytest.param("control plane", marks=pytest.mark.exhaustive)])
def test_a_fleet_ends_with_its_demo(start: Start, words: str) -> None:
    demo = start("--fleet", "2")
    address = demo.stdout_line().removeprefix("Console: ").strip()
    demo.wait_for(words)
    if words == "running":
        while len(items(f"{address}api/v1/nodes")) < 2:  # one may crawl before the other has connected
            demo.wait_for(words)
        assert {node["id"] for node in items(f"{address}api/v1/nodes")} == {"demo-1", "demo-2"}
        assert "No worker is running" not in read(address)
        [store] = demo.folder.glob("shoal-demo-*/shoal.db")
        with closing(sqlite3.connect(store)) as connection:
            assert connection.execute("SELECT count(*) FROM pulse WHERE name = 'worker'").fetchone() == (1,)
    demo.interrupt()
    _, err = demo.finish()
    assert "Traceback" not in err
    assert demo.left_behind() == []


def test_a_fleet_ends_with_a_demo_that_is_killed(start: Start) -> None:
    demo = start("--fleet", "2")
    demo.wait_for("running")
    workers = demo.processes()
    assert len(workers) >= 4, workers  # two workers, each with children
    demo.process.kill()
    demo.finish()  # returns when nobody can write to its stderr any more
    assert demo.processes() == []
    left = {path.name for path in demo.folder.glob("shoal-*")}
    assert len(left) >= 2, left  # its store, and the sockets of its control plane
    again = start("--fleet", "1")
    again.wait_for("control plane")
    assert left.isdisjoint(path.name for path in again.folder.glob("shoal-*"))
    again.interrupt()
    again.finish()
    assert again.left_behind() == []


@pytest.mark.exhaustive
def test_the_demo_takes_a_free_port_and_opens_the_console_there(start: Start, tmp_path: Path, taken_port: int) -> None:
    opener = tmp_path / "xdg-open"
    opener.write_text(f'#!/bin/sh\necho "$1" > "{tmp_path}/opened"\n')
    opener.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    demo = start("--exit", "--fast", "--json", "--open", SHOAL_LISTEN=f"127.0.0.1:{taken_port}", PATH=path)
    out, err = demo.finish()
    assert demo.process.returncode == 0, err
    console, summary = map(json.loads, out.splitlines())
    assert console["console"].startswith("http://127.0.0.1:")
    assert f":{taken_port}/" not in console["console"]
    assert (tmp_path / "opened").read_text().strip() == console["console"]
    assert summary["state"] == "completed"
    assert 300 < summary["pages"] < 400


@pytest.mark.exhaustive
def test_without_a_browser_pages_that_need_one_are_skipped(start: Start) -> None:
    demo = start("--exit", "--fast", "--json", PATH=str(Path(sys.executable).parent))
    out, err = demo.finish()
    assert "No Chromium was found, so the 12 pages that need scripts are skipped" in err
    assert json.loads(out.splitlines()[1])["skipped"]["excluded"] == site.TANKS


def test_links_of_the_demo_site_lead_to_its_pages_except_for_the_planted_ones() -> None:
    linked = {part.partition('"')[0] for path in FIRST for part in site.html(path, FIRST[path]).split('<a href="')[1:]}
    assert linked - set(FIRST) == {site.MISSING, site.HOUSE_RULES}
    redirects = {page.location for page in FIRST.values() if page.location}
    assert redirects <= set(FIRST)


def test_each_edition_of_the_demo_site_is_the_same_for_everybody_and_differs_from_the_one_before() -> None:
    assert site.build(1) == FIRST
    second = site.build(2)
    changed = {path for path in FIRST if second[path] != FIRST[path]}
    assert 30 < len(changed) < 100
    assert set(second) - set(FIRST) == {site.MISSING, f"{site.LOGBOOK}/{site.POSTS + 1}"}
