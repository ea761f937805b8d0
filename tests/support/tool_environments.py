"""Programs that tests run and that have packages of their own: an environment each, installed once for each lock."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.support.programs import ServerUnavailable

ROOT = Path(__file__).parents[2]
INSTALL_SECONDS = 600


def environment(name: str) -> Path:
    """Return the folder in which the packages of `<name>.lock` are installed."""
    lock = Path(__file__).with_name(f"{name}.lock")
    home = ROOT / ".venv" / f"{name}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if not home.exists():
        new = home.with_name(f"{home.name}.{os.getpid()}")
        _run(name, sys.executable, "-m", "venv", "--without-pip", str(new))
        # Use our own pip, and compile no bytecode in advance: few of the modules are ever imported.
        pip = [sys.executable, "-m", "pip", "--python", str(new), "install", "--quiet", "--disable-pip-version-check"]
        _run(name, *pip, "--no-compile", "--require-hashes", "--no-deps", "-r", str(lock))
        # Scripts contain the path of their interpreter, so the environment stays where it was created, and the short
        # name is a link to it.
        with suppress(FileExistsError):  # another run was first
            home.symlink_to(new.name)
    return home


def node_tools() -> Path:
    """Return the folder with the programs of `node_tools/package-lock.json`."""
    source = Path(__file__).with_name("node_tools")
    lock = (source / "package-lock.json").read_bytes()
    home = ROOT / ".venv" / f"node_tools-{hashlib.sha256(lock).hexdigest()[:12]}"
    with home.with_suffix(".lock").open("w") as waiting:
        fcntl.flock(waiting, fcntl.LOCK_EX)  # one process installs, because each would take minutes beside the others
        if not home.exists():
            new = home.with_suffix(".new")
            shutil.copytree(source, new, dirs_exist_ok=True)
            _run("node_tools", "npm", "ci", "--prefix", str(new), "--ignore-scripts", "--no-audit", "--no-fund")
            new.rename(home)
    return home / "node_modules" / ".bin"


def _run(name: str, *words: str) -> None:
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False, env=plain_environment()
        )
    except FileNotFoundError:
        raise ServerUnavailable(f"{name} cannot be installed without {words[0]}: install Node.js") from None
    if done.returncode:
        raise ServerUnavailable(
            f"{name} cannot be installed, so what needs it cannot be tested:\n{done.stderr[-2000:]}"
        )


def plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SHOAL"))}
