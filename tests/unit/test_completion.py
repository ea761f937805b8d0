"""Shell completion: what is offered, and that nothing else appears in the line that somebody is typing."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.app import opened
from shoal.base.ids import CrawlId
from shoal.base.settings_loader import load
from shoal.cli.completion import SHELLS, VARIABLE
from shoal.cli.main import main
from shoal.cli.root import shoal
from shoal.crawl.crawl import CrawlConfig

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("bare_environment")


def offered(*words: str) -> list[str]:
    """What is offered for the last word, without the time limit."""
    found = SHELLS["bash"](shoal, {}, "shoal", VARIABLE).get_completions(list(words[:-1]), words[-1])
    return [f"{one.type} {one.value}" for one in found]


def asked(*words: str, **env: str) -> list[str]:
    """What is offered for the last word, as the script of bash asks for it; nothing may be said on stderr."""
    line = {
        "COMP_WORDS": " ".join(["shoal", *words]),
        "COMP_CWORD": str(len(words)),
        "_SHOAL_COMPLETE": "bash_complete",
    }
    done = subprocess.run(
        [sys.executable, "-m", "shoal"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **line, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.fixture
def crawls(default_store: None) -> None:
    async def submit() -> None:
        async with opened(load().settings) as app:
            for name in ("monday", "tuesday"):
                await app.crawls.submit(CrawlConfig(seeds=["https://a.example/"]), crawl_id=CrawlId(name), named=[])

    asyncio.run(submit())


@pytest.mark.usefixtures("crawls")
def test_ids_are_completed_from_the_store() -> None:
    assert offered("crawls", "show", "") == ["plain tuesday", "plain monday"]
    assert offered("crawl", "--resume", "mo") == ["plain monday"]


def test_commands_states_and_choices_are_completed() -> None:
    assert offered("crawls", "pa") == ["plain pause"]
    assert offered("crawls", "ls", "--state", "pa") == ["plain pausing", "plain paused"]
    assert offered("crawl", "--scope", "p") == ["plain page", "plain prefix"]
    assert offered("crawl", "--rules", "x") == ["file x"]


def test_a_store_that_is_away_completes_nothing_and_says_nothing() -> None:
    nowhere = {"DATABASE_URL": "postgresql://shoal@127.0.0.1:1/shoal"}
    assert asked("crawls", "show", "mo", **nowhere) == []
    assert asked("crawls", "show", "mo", SHOAL_BOGUS="1") == []


@pytest.mark.exhaustive
def test_a_server_that_never_answers_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert asked("crawls", "show", "--server", server, "mo") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"_SHOAL_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_bash_completes_with_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "shoal").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m shoal "$@"\n')
    (tmp_path / "shoal").chmod(0o755)
    line = 'source ./script; COMP_WORDS=(./shoal crawl --robots ""); COMP_CWORD=3; _shoal_completion ./shoal'
    done = subprocess.run(
        ["bash", "--norc", "-c", f'{line}; echo "${{COMPREPLY[@]}}"'],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("obey ignore\n", "")
