"""Extras that are not installed: one sentence with the command, and exit code 4."""

import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from shoal.base.errors import MissingExtra
from shoal.base.extras import MODULES, Extra, command, is_installed
from shoal.cli.main import main
from shoal.cli.root import COMMANDS
from shoal.pages.export.output import Outputs
from shoal.process.worker import _kinds

ROOT = Path(__file__).parents[2]


def without(extra: Extra, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in MODULES[extra]:
        monkeypatch.setitem(sys.modules, module, None)
    assert not is_installed(extra)


def test_every_extra_of_the_package_is_known() -> None:
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert described.keys() - {"all"} == set(MODULES) == set(get_args(Extra))


def test_a_format_without_its_extra_is_refused_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    without("parquet", monkeypatch)
    with pytest.raises(MissingExtra, match=r'Parquet needs the extra "parquet".* -m pip install \'shoal\[parquet\]\'`'):
        Outputs(["pages.parquet"])


@pytest.mark.parametrize("name", [name for name, lazy in COMMANDS.items() if lazy.extra])
def test_a_command_without_its_extra_names_the_command_that_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = COMMANDS[name].extra
    assert extra is not None
    without(extra, monkeypatch)
    assert main([name, "--json-report", "x", "http://a.example/"]) == 4
    said = capsys.readouterr()
    fix = f"install it with `{shlex.quote(sys.executable)} -m pip install 'shoal[{extra}]'`"
    assert (said.out, said.err) == ("", f'shoal: `shoal {name}` needs the extra "{extra}"; {fix}.\n')
    assert main([name, "--help"]) == 0
    assert COMMANDS[name].description in capsys.readouterr().out


def test_an_extra_is_installed_for_the_python_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/home/me/my tools/bin/python3")
    assert command("redis") == "'/home/me/my tools/bin/python3' -m pip install 'shoal[redis]'"
    monkeypatch.setitem(sys.modules, "pip", None)  # as in an environment that uv made
    assert command("redis") == "uv pip install --python '/home/me/my tools/bin/python3' 'shoal[redis]'"


def test_a_checkout_installs_an_extra_from_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_COMMAND", "./shoal")
    monkeypatch.setattr(sys, "prefix", "/checkout/.venv")
    pip = "/checkout/.venv/bin/python -m pip install --no-deps"
    assert command("content") == f"{pip} -r /checkout/locks/content.lock"
    assert (ROOT / "locks" / "content.lock").exists()


def test_a_worker_without_the_extra_leaves_analyses_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "analysis" in _kinds()
    without("audit", monkeypatch)
    assert _kinds() == ("crawl",)


def test_servers_workers_and_crawls_need_no_package_of_another_extra() -> None:
    code = (
        "import sys\n"
        "for name in ('numpy', 'pyarrow', 'trafilatura', 'redis', 'asyncpg'): sys.modules[name] = None\n"
        "import shoal.app.console, shoal.cli.crawl, shoal.process.controller, shoal.process.worker"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
