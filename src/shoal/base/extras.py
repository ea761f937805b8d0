"""The extras of the `shoal` package: which optional packages they have, and the error if these are not installed.

A module of Shoal that imports an optional package is imported only where that module is used, after `require`.
"""

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from shoal.base.errors import MissingExtra

Extra = Literal["audit", "content", "parquet", "postgres", "redis", "render", "server"]

MODULES: Final[dict[Extra, tuple[str, ...]]] = {
    "audit": ("numpy",),
    "content": ("trafilatura",),
    "parquet": ("pyarrow",),
    "postgres": ("asyncpg",),
    "redis": ("redis", "hiredis"),
    "render": ("httptools",),
    "server": ("uvicorn", "httptools", "prometheus_client", "grpc", "grpc_health", "grpc_reflection"),
}
"""The modules that Shoal imports from each extra and that nothing else installs."""


def is_installed(extra: Extra) -> bool:
    return all(find_spec(module) is not None for module in MODULES[extra])


def require(extra: Extra, what: str) -> None:
    """Raise `MissingExtra` unless an extra is installed. `what`: the command, setting or format that needs the
    extra."""
    if not is_installed(extra):
        raise MissingExtra(what, extra, command(extra))


def command(extra: Extra) -> str:
    """Return the command that installs an extra for the running Python. A checkout gets the locked versions."""
    if "SHOAL_COMMAND" in os.environ:  # `./shoal` of a checkout sets this variable
        venv = Path(sys.prefix)
        words = [f"{venv}/bin/python", "-m", "pip", "install", "--no-deps", "-r", f"{venv.parent}/locks/{extra}.lock"]
    elif find_spec("pip") is not None:
        words = [sys.executable, "-m", "pip", "install", f"shoal[{extra}]"]
    else:  # environments made by uv have no pip
        words = ["uv", "pip", "install", "--python", sys.executable, f"shoal[{extra}]"]
    return shlex.join(words)
