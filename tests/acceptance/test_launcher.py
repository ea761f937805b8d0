"""`./shoal` on its own: a stub stands for the package and a lock without packages for the real one."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import with_load

pytestmark = pytest.mark.exhaustive  # `make test` has run the launcher before
ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "locks").glob("*.lock"))
BAD_CONFIG = 4
STUB = """
import json, os, sys
called = os.environ.pop("SHOAL_COMMAND")
print(called if sys.argv[1:] == ["called"] else json.dumps([sys.argv[1:], [n for n in os.environ if "SHOAL" in n]]))
"""
ONE_PACKAGE = f"colourless-green-ideas==1.0 --hash=sha256:{'0' * 64}\n"


class Checkout:
    """A folder with the launcher in it, as git would make one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launcher = folder / "shoal"
        self.lock = folder / "locks" / "plain.lock"
        self.venv = folder / ".venv"

    @classmethod
    def make(cls, folder: Path) -> "Checkout":
        package = folder / "src" / "shoal"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(STUB)
        shutil.copy(ROOT / "shoal", folder)
        checkout = cls(folder)
        checkout.lock.parent.mkdir()
        for lock in LOCKS:
            (checkout.lock.parent / lock.name).write_text("# nothing yet\n")
        return checkout

    def copy(self, folder: Path) -> "Checkout":
        shutil.copytree(self.folder, folder, symlinks=True, copy_function=copy_or_link)
        return Checkout(folder)

    def start(
        self,
        *words: str,
        launcher: Path | str | None = None,
        cwd: Path | str = "/",
        uid: int | None = None,
        **env: str,
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [launcher or self.launcher, *words],
            cwd=cwd,
            env=clean_environment() | env,
            user=uid,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, **how: Any) -> tuple[int, str, str]:
        with self.start(*words, **how) as process:
            stdout, stderr = process.communicate(timeout=with_load(60))
        return process.returncode, stdout, stderr


def copy_or_link(source: "os.PathLike[str]", target: str) -> None:
    """Installed packages are never written to: a copy can share their files."""
    if "site-packages" in os.fspath(source):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def clean_environment() -> dict[str, str]:
    """Return the environment without settings for pip and Shoal."""
    foreign = ("PIP_", "SHOAL_", "PYTHON")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    return kept | {"SHOAL_PYTHON": sys.executable, "PIP_CONFIG_FILE": os.devnull}


def refusal(outcome: tuple[int, str, str]) -> str:
    """The error message of a launcher that gave up."""
    code, stdout, stderr = outcome
    assert (code, stdout) == (BAD_CONFIG, "")
    sentence = stderr.splitlines()[-1]
    assert sentence.startswith("shoal: ")
    assert "Traceback" not in stderr
    return sentence


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkout, tuple[int, str, str]]:
    checkout = Checkout.make(tmp_path_factory.mktemp("launcher") / "a check out")
    return checkout, checkout.run("crawl", "a b")


@pytest.fixture
def installed(first_run: tuple[Checkout, tuple[int, str, str]], tmp_path: Path) -> Checkout:
    """A checkout for this test alone, after its first run. It must also work from a copy."""
    return first_run[0].copy(tmp_path / "moved here")


@pytest.mark.exhaustive
def test_the_first_run_installs_says_so_in_one_line_and_starts(
    first_run: tuple[Checkout, tuple[int, str, str]],
) -> None:
    _, (code, stdout, stderr) = first_run
    assert (code, stdout) == (0, '[["crawl", "a b"], []]\n')
    assert stderr.count("\n") == 1
    assert "installing the locked packages" in stderr


def test_later_runs_print_nothing(installed: Checkout) -> None:
    assert installed.run("--version") == (0, '[["--version"], []]\n', "")


def test_the_command_knows_by_what_name_it_was_called(installed: Checkout) -> None:
    assert installed.run("called", launcher="./shoal", cwd=installed.folder)[1] == "./shoal\n"
    assert installed.run("called", launcher="shoal", PATH=f"{installed.folder}:{os.environ['PATH']}")[1] == "shoal\n"


def test_a_symbolic_link_is_as_good_as_the_launcher(installed: Checkout, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    near = tmp_path / "bin" / "near"
    near.symlink_to("../moved here/shoal")
    far = tmp_path / "far"
    far.symlink_to(near)
    assert installed.run("x", launcher=far) == (0, '[["x"], []]\n', "")
    assert installed.run("x", launcher=installed.venv / "bin" / "shoal") == (0, '[["x"], []]\n', "")


def test_bytecode_is_there_and_fresh_also_for_a_python_that_writes_none(installed: Checkout) -> None:
    package = installed.folder / "src" / "shoal"
    kept = list((package / "__pycache__").glob("__main__.*.pyc"))
    assert len(kept) == 1
    (package / "__main__.py").write_text("print('changed')")
    assert installed.run("x", PYTHONDONTWRITEBYTECODE="1") == (0, "changed\n", "")
    [compiled] = kept
    assert b"changed" in compiled.read_bytes()


def test_modules_in_the_callers_folder_are_not_imported(installed: Checkout, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('imported')")
    assert installed.run("x", cwd=tmp_path)[0] == 0


def test_a_changed_lock_is_installed_once_also_by_two_runs_at_once(installed: Checkout) -> None:
    installed.lock.write_text("# changed\n")
    with installed.start("one") as one, installed.start("two") as two:
        said = [process.communicate(timeout=with_load(60))[1] for process in (one, two)]
    assert (one.returncode, two.returncode) == (0, 0)
    assert "".join(said).count("installing") == 1 + "".join(said).count("another process is installing")
    assert installed.run("three")[2] == ""


@pytest.mark.exhaustive
def test_the_extra_is_installed_on_request_and_then_kept(installed: Checkout) -> None:
    extra = installed.folder / "locks" / "content.lock"
    assert installed.run("x")[2] == ""
    _, out, said = installed.run("x", SHOAL_CONTENT="1")
    assert out == '[["x"], []]\n'
    assert "installing the locked packages" in said
    assert installed.run("x")[2] == ""
    extra.write_text("# a newer extra\n")
    assert "installing the locked packages" in installed.run("x")[2]
    assert installed.run("x")[2] == ""


@pytest.mark.exhaustive
def test_the_remains_of_an_interrupted_install_are_removed(installed: Checkout) -> None:
    (installed.venv / "incomplete").touch()
    (installed.venv / "half a package").touch()
    installed.lock.write_text("# changed\n")
    assert installed.run("x")[0] == 0
    assert not (installed.venv / "half a package").exists()
    assert not (installed.venv / "incomplete").exists()


def test_an_unreachable_index_is_one_sentence_and_the_next_run_tries_again(installed: Checkout) -> None:
    before = installed.lock.read_text()
    installed.lock.write_text(ONE_PACKAGE)
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}
    assert "cannot be reached" in refusal(installed.run("x", **nowhere))
    assert "cannot be reached" in refusal(installed.run("x", **nowhere))
    installed.lock.write_text(before)
    assert installed.run("x", **nowhere)[0] == 0


def test_a_missing_package_is_reported_in_one_sentence(installed: Checkout) -> None:
    installed.lock.write_text(ONE_PACKAGE)
    assert "colourless-green-ideas" in refusal(installed.run("x", PIP_NO_INDEX="1"))


def test_an_old_python_is_reported_in_one_sentence(tmp_path: Path) -> None:
    checkout = Checkout.make(tmp_path / "checkout")
    old = tmp_path / "old"
    old.mkdir()
    for name in ("python", "python3", "python3.11", "python3.12", "python3.13", "python3.14"):
        write_script(old / name, '[ "$1" = --version ] && echo Python 3.9.18 || exit 1')
    path = f"{old}{os.pathsep}{os.defpath}"
    assert "3.11 or newer is needed and Python 3.9.18 was found" in refusal(
        checkout.run("x", PATH=path, SHOAL_PYTHON="")
    )
    assert "SHOAL_PYTHON=" in refusal(checkout.run("x", SHOAL_PYTHON=str(old / "python3")))
    assert not checkout.venv.exists()


def test_a_python_without_venv_is_reported_in_one_sentence(tmp_path: Path) -> None:
    checkout = Checkout.make(tmp_path / "checkout")
    python = tmp_path / "python"
    answers = '*realpath*) echo "$0" ;; *ensurepip*) exit 1'
    write_script(python, f'case "$2" in {answers} ;; *) exec "{sys.executable}" "$@" ;; esac')
    assert "apt install python3-venv" in refusal(checkout.run("x", SHOAL_PYTHON=str(python)))


def test_a_read_only_folder_is_reported_in_one_sentence(public_folder: Path) -> None:
    checkout = Checkout.make(public_folder / "checkout")
    checkout.folder.chmod(0o555)
    assert "read-only" in refusal(checkout.run("x", uid=65534 if os.geteuid() == 0 else None))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_has_a_hash_for_everything_and_names_no_index(lock: Path) -> None:
    entries = re.split(r"\n(?! )", lock.read_text().strip())
    assert all(re.match(r"[a-z0-9-]+==\S+", entry) and "--hash=sha256:" in entry for entry in entries)
    assert not re.search(r"://|--(extra-)?index-url|--find-links", lock.read_text())


def test_the_locks_hold_every_dependency_of_the_package_in_one_version() -> None:
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {"plain": described["project"]["dependencies"], "dev": described["dependency-groups"]["dev"]}
    wanted |= described["project"]["optional-dependencies"]
    everything = wanted.pop("all")
    assert everything == [f"shoal[{','.join(sorted(wanted.keys() - {'plain', 'dev'}))}]"]
    assert {lock.stem for lock in LOCKS} == set(wanted)
    versions: dict[str, set[str]] = {}
    for lock in LOCKS:
        locked = re.findall(r"^([a-z0-9-]+)==(\S+)", lock.read_text(), re.MULTILINE)
        assert {re.split(r"[\[<>=!~; ]", one)[0] for one in wanted[lock.stem]} <= {name for name, _ in locked}
        for name in {name for name, _ in locked}:
            found = " and ".join(sorted(version for other, version in locked if other == name))
            versions.setdefault(name, set()).add(found)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_the_launcher_installs_all_extras_but_the_one_on_request() -> None:
    [locks] = re.findall(r'^locks="(.+)"$', (ROOT / "shoal").read_text(), re.MULTILINE)
    assert {*locks.split(), "content", "dev"} == {lock.stem for lock in LOCKS}


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """Other users cannot enter pytest's own folders, and file modes do not stop root from writing."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def write_script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
