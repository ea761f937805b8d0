"""`shoal demo` as a process: its output, its crawl, and that it leaves nothing behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.request import urlopen

import pytest

from shoal.cli import demo_site as site

DEADLINE_SECONDS = 120
ALL_PAGES = site.PAGES + 2  # the redirect and the missing page are pages, too


class Demo:
    """One running demo, in a session of its own so that a Ctrl-C can be sent to all of it."""

    def __init__(self, folder: Path, *words: str, **env: str) -> None:
        self.folder = folder
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal", "demo", *words],
            cwd=folder,
            env=clean | {"TMPDIR": str(folder), "HOME": str(folder)} | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self) -> tuple[str, str]:
        return self.process.communicate(timeout=DEADLINE_SECONDS)

    def stdout_line(self) -> str:
        return _stream(self.process.stdout).readline()

    def wait_for(self, words: str) -> None:
        for line in _stream(self.process.stderr):
            if words in line:
                return
        raise AssertionError(f"the demo ended without saying {words!r}")

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def left_behind(self) -> list[str]:
        """Files in its temporary folder, and processes that still use it."""
        files = [path.name for path in self.folder.glob("shoal-demo-*")]
        return files + [str(pid) for pid in _processes() if str(self.folder) in _environment(pid)]


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


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_the_demo_crawls_its_site_and_ends_when_told_to(tmp_path: Path) -> None:
    demo = Demo(tmp_path, "--exit", SHOAL_LISTEN="127.0.0.1:0")
    out, err = demo.finish()
    assert demo.process.returncode == 0, err
    assert out.startswith("Console: http://127.0.0.1:")
    assert len(out.splitlines()) == 1
    # The target of the site's redirect may have been fetched already; then the redirect is a page of its own.
    assert re.search(rf"Completed: {ALL_PAGES} pages \(2xx \d+, (3xx 1, )?4xx 1\), 0 errors", err)
    assert "Traceback" not in err
    assert demo.left_behind() == []


@pytest.mark.exhaustive
def test_the_demo_takes_a_free_port_if_its_own_is_taken(tmp_path: Path, taken_port: int) -> None:
    demo = Demo(tmp_path, "--exit", "--json", SHOAL_LISTEN=f"127.0.0.1:{taken_port}")
    out, err = demo.finish()
    assert demo.process.returncode == 0, err
    console, summary = map(json.loads, out.splitlines())
    assert console["console"].startswith("http://127.0.0.1:")
    assert f":{taken_port}/" not in console["console"]
    assert summary["state"] == "completed"
    assert summary["pages"] == ALL_PAGES


def test_the_console_stays_until_ctrl_c_which_leaves_nothing_behind(tmp_path: Path) -> None:
    demo = Demo(tmp_path, SHOAL_LISTEN="127.0.0.1:0")
    address = demo.stdout_line().removeprefix("Console: ").strip()
    demo.wait_for("The console is at")
    with urlopen(address, timeout=10) as response:
        page = response.read().decode()
    assert 'data-state="completed">Completed<' in page
    demo.interrupt()
    _, err = demo.finish()
    assert demo.process.returncode in (0, 130)
    assert "Traceback" not in err
    assert demo.left_behind() == []


@pytest.mark.parametrize("sign", [pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive), signal.SIGTERM])
def test_an_end_in_the_middle_of_the_crawl_leaves_nothing_behind(tmp_path: Path, sign: signal.Signals) -> None:
    demo = Demo(tmp_path, SHOAL_LISTEN="127.0.0.1:0")
    demo.wait_for("running")
    demo.process.send_signal(sign)
    _, err = demo.finish()
    assert "Traceback" not in err
    assert demo.left_behind() == []


def test_the_demo_site_is_whole() -> None:
    linked = {part.partition('"')[0] for page in site.SITE.values() for part in page.split('href="')[1:]}
    assert len(site.SITE) == site.PAGES
    assert linked == set(site.SITE) | {site.MOVED, site.MISSING}
