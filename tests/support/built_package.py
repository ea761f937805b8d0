"""The wheel and the source distribution, built as `make dist` builds them, and empty environments with the wheel."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.tool_environments import ROOT, environment, plain_environment

LOCKS = sorted(path for path in (ROOT / "locks").glob("*.lock") if path.stem != "dev")
SECONDS = 200


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    """Run a command that must succeed; return its output."""
    done = subprocess.run(
        words, cwd=cwd, env=plain_environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tool(name: str) -> Path:
    return environment("packaging") / "bin" / name


@contextmanager
def one_process(beside: Path) -> Iterator[None]:
    """Let one process at a time build what the others then find."""
    with beside.with_name(f"{beside.name}.turn").open("w") as waiting:
        fcntl.flock(waiting, fcntl.LOCK_EX)
        yield


def distribution(folder: Path) -> Path:
    """Return the folder with both files. The wheel is built from the unpacked source distribution."""
    home = folder / "dist"
    with one_process(home):
        if not home.exists():
            new = home.with_name("new")
            run(sys.executable, "-m", "build", "--no-isolation", "--outdir", new, ROOT)
            new.rename(home)
    return home


def wheelhouse(python: str) -> Path:
    """Return the folder with all packages of the locks for one Python, fetched once by the pip that the machine's
    settings are for."""
    content = b"".join(lock.read_bytes() for lock in LOCKS) + python.encode()
    home = ROOT / ".venv" / f"wheelhouse-{hashlib.sha256(content).hexdigest()[:12]}"
    with one_process(home):
        if not home.exists():
            new = home.with_name(f"{home.name}.new")
            given = [word for lock in LOCKS for word in ("-r", lock)]
            pip = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
            run(*pip, "--no-deps", "--require-hashes", "--dest", new, *given)
            new.rename(home)
    return home


def newest_python() -> str | None:
    """Return the newest Python of this machine, if it is newer than the oldest one that is supported."""
    found = [shutil.which(f"python3.{minor}") for minor in range(12, 20)]
    found += [str(path) for path in Path.home().glob(".pyenv/versions/3.*/bin/python")]
    by_version = {version: python for python in found if python and (version := _version(python)) > (3, 11)}
    return by_version[max(by_version)] if by_version else None


def _version(python: str) -> tuple[int, ...]:
    done = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
    match = re.match(r"Python (\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


class Environment:
    """An environment with nothing but the wheel, and what it and the given extras depend on."""

    def __init__(self, folder: Path, wheel: Path, *extras: str, python: str = sys.executable) -> None:
        self.folder = folder
        self.shoal = folder / "bin" / "shoal"
        self.python = folder / "bin" / "python"
        run(tool("uv"), "venv", "--quiet", "--python", python, folder)
        wanted = f"shoal[{','.join(extras)}] @ {wheel.as_uri()}"
        offline = ("--no-index", "--find-links", wheelhouse(python))
        # Bytecode is compiled, as pip does it: it counts.
        self._uv("install", "--compile-bytecode", *offline, wanted)
        self._uv("check")

    def _uv(self, command: str, *words: str | Path) -> None:
        run(tool("uv"), "pip", command, "--quiet", "--no-config", "--python", self.python, *words)

    @property
    def megabytes(self) -> float:
        """The size of the installed packages on the disk, in megabytes as `du -m` has them."""
        [site] = self.folder.glob("lib/python3*/site-packages")
        return int(run("du", "-s", "-k", site).split()[0]) / 1024

    def run(self, *words: str, cwd: Path, **env: str) -> "subprocess.CompletedProcess[str]":
        """Run `shoal`, as a user in an empty home does."""
        home = {"HOME": str(cwd), "PATH": f"{self.shoal.parent}{os.pathsep}{os.environ['PATH']}"}
        return subprocess.run(
            ["shoal", *words],
            cwd=cwd,
            env=plain_environment() | home | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
