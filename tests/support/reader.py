"""A reader who does what a page of the documentation says, in a folder with the launcher: writes its files, runs its
commands in one shell, leaves its servers running until the page ends, and compares what is printed with what is shown.

CONTRIBUTING.md describes the notation ("Add a page to the documentation").
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple, Self

from tests.support.fleet import clean_environment
from tests.support.patience import with_load
from tests.support.servers import free_port

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 180
EXAMPLE = "https://example.com/"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
# Commands that run until Ctrl-C, and what they print when they are ready.
SERVERS = {
    "./shoal demo": "Console:",
    "./shoal serve": "Shoal is listening",
    "python3 -m http.server": "Serving HTTP",
}
SERVER = re.compile(rf"^(?:\w+=\S+ )*({'|'.join(map(re.escape, SERVERS))})\b")
# What differs from run to run. Another value of the same kind is as good as the one that is shown.
KINDS = {
    "id": r"\b(?:anl|crl|evt|grp|job|pol|tok|whk)_\w{8,}",
    "time": r"\b\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?(?: UTC|Z)?",
    "rate": r"\b[\d,.]+ pages?/s",
    "duration": r"\b[\d,.]+ (?:ms|s|min|h|d)\b(?: \d+ (?:s|min|h)\b)?",
    "size": r"\b[\d,.]+ [kMG]?B\b",
    "version": r"\bShoal/\d[\w.]*",
    "space": r" +",
}
VARYING = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in KINDS.items()) + "|(?P<rest>…)")


class Block(NamedTuple):
    """A block of code: its language, its title (the name of a file to write) and its text."""

    language: str
    title: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(page.read_text("utf-8"))]


def commands_in(text: str) -> list[str]:
    """Return the commands of a block; a backslash at the end of a line continues it."""
    return text.replace("\\\n", "").splitlines()


def ports(shop: int, server: int) -> dict[str, str]:
    """Return what stands for the ports that pages name."""
    return {
        "http.server 8000": f"http.server {shop}",
        "127.0.0.1:8000": f"127.0.0.1:{shop}",
        "127.0.0.1:8700": f"127.0.0.1:{server}",
    }


def is_shown(shown: str, said: str) -> bool:
    """Return whether a page shows this output. A line `…` stands for any number of lines."""
    lines = ["(?:.*\n)*?" if line == "…" else _pattern(line) + " *\n" for line in shown.splitlines()]
    return re.fullmatch("".join(lines), said) is not None


def _pattern(line: str) -> str:
    parts, end = [], 0
    for found in VARYING.finditer(line):
        parts += [re.escape(line[end : found.start()]), KINDS.get(found.lastgroup or "", ".*?")]
        end = found.end()
    return "".join([*parts, re.escape(line[end:])])


class Reader:
    """Someone with an empty home who works through pages in one folder, which has the launcher and `examples/`.

    `instead` has what stands for what the pages name, such as a free port for 8000.
    """

    def __init__(self, folder: Path, instead: Mapping[str, str], python: str = ".venv/bin/python", **env: str) -> None:
        self._folder = folder
        self._instead = instead
        self._python = python
        self._env = clean_environment(folder) | {"PYTHONUNBUFFERED": "1", **env}

    @classmethod
    def in_folder(cls, folder: Path, site: str) -> Self:
        """Return a reader with the packages of the tests. `site` stands for example.com."""
        path = f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        python = f"PYTHONPATH={shlex.quote(path)} {shlex.quote(sys.executable)}"
        (folder / "shoal").write_text(f'#!/bin/sh\nexport SHOAL_COMMAND=./shoal\nexec env {python} -P -m shoal "$@"\n')
        (folder / "shoal").chmod(0o755)
        shop, server = free_port(), free_port()
        reader = cls(folder, ports(shop, server) | {EXAMPLE: site}, python, SHOAL_LISTEN=f"127.0.0.1:{server}")
        shutil.copytree(ROOT / "examples", folder / "examples")
        reader.translate(folder / "examples")
        return reader

    def translate(self, folder: Path) -> None:
        """Put what stands for something into the files of a folder, too."""
        for path in folder.rglob("*"):
            if path.is_file():
                path.write_text(self._translated(path.read_text()))

    def read(self, page: Path) -> int:
        """Do what the page says, and return how many commands it has."""
        work = Path(mkdtemp(prefix=f".{page.stem}-", dir=self._folder))
        blocks = [Block(*map(self._translated, block)) for block in blocks_of(page)]
        (work / "script").write_text("".join(_script(blocks, work, self._python)))
        self._run(page, blocks, work)
        said: tuple[str, ...] = ()
        for number, block in enumerate(blocks):
            if block.language in ("sh", "python"):
                said = _said(work, number)
            elif block.language == "output":
                assert any(is_shown(block.text, one) for one in said), (
                    f"{page.name} shows\n{block.text}\nbut this is printed:\n{said[-1]}"
                )
        return sum(len(commands_in(block.text)) for block in blocks if block.language == "sh")

    def _translated(self, text: str) -> str:
        for name, other in self._instead.items():
            text = text.replace(name, other)
        return text

    def _run(self, page: Path, blocks: list[Block], work: Path) -> None:
        words = ["sh", "-eu", str(work / "script")]
        with subprocess.Popen(words, cwd=self._folder, env=self._env, start_new_session=True) as shell:
            try:
                code = shell.wait(with_load(DEADLINE_SECONDS))
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)
        last = max((number for number in range(len(blocks)) if (work / f"{number}.out").exists()), default=0)
        assert code == 0, f"{page.name}: {blocks[last].text}\nends with {code}:\n{_said(work, last)[-1]}"


def _script(blocks: list[Block], work: Path, python: str) -> Iterator[str]:
    """One script for the page: variables and functions of a block are there in the next one."""
    yield 'end() { [ $# = 0 ] || { kill "$@"; wait "$@"; } 2>/dev/null || :; }\n'
    yield "set --\nshoal=\ntrap 'end \"$@\" $shoal' EXIT\n"
    for number, block in enumerate(blocks):
        file, out, err, log = (shlex.quote(str(work / f"{number}.{end}")) for end in ("file", "out", "err", "log"))
        if block.title or block.language == "python":
            (work / f"{number}.file").write_text(block.text)
        if block.title:
            yield f"cp {file} {block.title}\n"
        elif block.language == "python":
            yield f"{python} -W error {file} >{out} 2>{err}\n"
        elif block.language == "sh":
            yield f"exec >{out} 2>{err}\n"
            for line in block.text.splitlines():
                server = SERVER.match(line)
                yield _start(line, SERVERS[server[1]], log) if server else f"{line}\n"


def _start(command: str, ready: str, log: str) -> str:
    """Start a server and wait until it is ready, or has ended. A server of Shoal's takes the place of the last one."""
    stop, keep = ("", 'set -- "$@" $!\n') if "shoal" not in command else ("end $shoal\n", "shoal=$!\n")
    return (
        f"{stop}{command.partition(' #')[0]} >{log} 2>&1 &\n{keep}"
        f"until grep -q {shlex.quote(ready)} {log}; do kill -0 $! || {{ cat {log} >&2; exit 1; }}; sleep 0.1; done\n"
    )


def _said(work: Path, number: int) -> tuple[str, str]:
    """What a block printed: on stdout alone, and in all."""
    out, err = ((work / f"{number}.{end}").read_text() for end in ("out", "err"))
    return out, err + out
