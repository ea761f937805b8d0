"""Untrusted text on a terminal: what pages say is escaped there, and goes through a pipe as it is."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.base.text import escaped
from shoal.cli.output import print_json, print_rows, print_table
from shoal.egress import Limits
from shoal.pages.export.output import Outputs
from shoal.pages.page import Page

EVIL = "\x1b[2J\x07 \x7f \x9b31m \u202eedoc\u202c \u2066x\u2069 \u200b\ufeff \U000e0041 é 猫 👩\u200d🚀"
DANGEROUS = {*"\x07\x7f\x9b\u202e\u202c\u2066\u2069\u200b\ufeff\U000e0041\x1b"}
END = "the end of it"


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """A terminal in the place of stdout, and a way to read what was written to it."""
    master, slave = os.openpty()
    with os.fdopen(slave, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)

        def read() -> str:
            print(END, file=stream, flush=True)
            found = b""
            while END.encode() not in found:
                found += os.read(master, 100_000)
            return found.decode().replace("\r\n", "\n").removesuffix(f"{END}\n")

        yield read
        monkeypatch.undo()
    os.close(master)


async def export() -> None:
    outputs = Outputs(["-"])
    await outputs.open("c", 0, Limits())
    await outputs.write([Page(url="http://a.example/", depth=0, fetched_at=0, attempt=1, title=EVIL)])
    await outputs.complete()


def show_json() -> None:
    print_json({"title": EVIL})


@pytest.mark.parametrize("show", [lambda: asyncio.run(export()), show_json], ids=["--output -", "--json"])
def test_json_on_a_terminal_is_equal_but_has_no_control_characters(
    show: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal(monkeypatch) as read:
        show()
        said = read()
    assert not DANGEROUS & set(said)
    assert json.loads(said)["title"] == EVIL
    assert "é 猫 👩\u200d🚀" in said  # harmless text is shown unchanged


def test_a_pipe_gets_the_bytes_as_they_are(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    asyncio.run(export())
    said = capfdbinary.readouterr().out
    assert "\u202eedoc".encode() in said
    assert json.loads(said)["title"] == EVIL
    show_json()
    assert "\x9b31m \u202eedoc".encode() in capfdbinary.readouterr().out


def test_tables_and_facts_are_safe_wherever_they_go(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["title"], [[EVIL]])
    print_rows([("Title", EVIL)], to_stdout=True)
    assert not DANGEROUS & set(capsys.readouterr().out)


def test_line_breaks_are_kept_on_a_terminal() -> None:
    assert escaped('{"a": "b"}\r\n{"c":\t1}\n') == '{"a": "b"}\r\n{"c":\t1}\n'
    assert escaped("over\rwritten \ud800") == "over\\u000dwritten \\ud800"


def test_no_command_prints_what_pages_say_by_itself() -> None:
    """Commands print through `output` or `summary`, or only ids and counts."""
    cli = Path(__file__).parents[2] / "src/shoal/cli"
    raw = [
        file.name
        for file in cli.glob("*.py")
        if "sys.stdout.write" in file.read_text() or "click.echo" in file.read_text()
    ]
    assert raw == []
