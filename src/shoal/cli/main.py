"""Where `shoal` starts. Answers `--version` by itself, in no time; everything else is left to the frame."""

import os
import sys
from collections.abc import Sequence

from shoal import __version__

PIPE_CLOSED = 141  # 128 + SIGPIPE: what a shell sees of any program whose reader went away


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _have_streams()
    code = 0
    try:
        code = _version() if words == ["--version"] else _command(words)
        sys.stdout.flush()
    except OSError as error:
        return _unwritten(error, code)
    return code


def _version() -> int:
    print(f"shoal {__version__}")
    return 0


def _command(words: list[str]) -> int:
    from shoal.cli.root import run

    return run(words)


def _have_streams() -> None:
    """Started with a stream closed, Python has None in its place; nobody below should have to think of it."""
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _unwritten(error: OSError, code: int) -> int:
    # What is left in the buffer would make the interpreter complain at its exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return code or PIPE_CLOSED
    if code == 0:
        print(f"shoal: the output cannot be written ({error.strerror}).", file=sys.stderr)
    return code or 1
