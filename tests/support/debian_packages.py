"""Programs from Debian packages that are unpacked below `.venv` and never installed: none is on the path, no service
starts."""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.programs import ServerUnavailable
from tests.support.tool_environments import ROOT, plain_environment

STARTER = """#!/bin/sh
here=$(dirname "$0")
LD_LIBRARY_PATH=$(printf '%s:' "$here"/usr/lib/* "$here"/usr/lib/*/systemd) exec "$here"/{program} "$@"
"""


def program_of(package: str, program: str) -> Path:
    """Return the machine's program, or else that of the Debian package, which is downloaded once."""
    name = Path(program).name
    if found := shutil.which(name, path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin"):
        return Path(found)

    def unpack(folder: Path) -> None:
        unpack_package(folder, package)
        write_starter(folder, program)

    return unpack_once(f"debian-{package}", unpack) / name


def unpack_once(name: str, unpack: Callable[[Path], None]) -> Path:
    """Return the folder of this name that `unpack` has filled, now or in an earlier run."""
    folder = ROOT / ".venv" / name
    with _locked(folder):
        if not folder.exists():
            new = folder.with_name(f"{folder.name}.new")
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            unpack(new)
            new.rename(folder)
    return folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def unpack_package(folder: Path, package: str, version: str = "") -> None:
    """Download the newest package whose version begins so, and those of its libraries that the machine lacks."""
    if not _newest(package, version) and os.geteuid() == 0:
        run(folder, "apt-get", "update", "-q")
    newest = _newest(package, version)
    if newest is None:
        raise ServerUnavailable(f"apt has no {package} {version}".rstrip())
    wanted = f"{package}={newest}"
    run(folder, "apt-get", "download", "-q", wanted, *filter(_is_missing, _libraries(wanted)))
    for file in sorted(folder.glob("*.deb")):
        run(folder, "dpkg-deb", "-x", str(file), str(folder))
        file.unlink()


def write_starter(folder: Path, program: str) -> None:
    """Write a script that starts this program of the folder with the libraries in it."""
    starter = folder / Path(program).name
    starter.write_text(STARTER.format(program=program))
    starter.chmod(0o755)


def run(folder: Path, *words: str) -> str:
    environment = {**plain_environment(), "LC_ALL": "C"}
    try:
        done = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, timeout=600, check=False, env=environment
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerUnavailable(f"{words[0]}: {error}") from error
    if done.returncode:
        raise ServerUnavailable(f"{words[0]} failed: {done.stderr.strip()[-1000:]}")
    return done.stdout


def _newest(package: str, version: str) -> str | None:
    lines = run(Path(), "apt-cache", "madison", package).splitlines()
    found = [line.split("|")[1].strip() for line in lines]
    return next((one for one in found if re.match(rf"(\d+:)?{re.escape(version)}", one)), None)


def _libraries(wanted: str) -> list[str]:
    return re.findall(r"Depends: (lib\S+)", run(Path(), "apt-cache", "depends", wanted))


def _is_missing(package: str) -> bool:
    shown = subprocess.run(["dpkg-query", "-W", "-f", "${Status}", package], capture_output=True, check=False)
    return b"install ok installed" not in shown.stdout
