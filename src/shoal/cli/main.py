"""The entry point of `shoal`. Handles `--version` itself, to be fast, and passes everything else to `root`."""

import os
import sys
from collections.abc import Sequence

from shoal import __version__

PIPE_CLOSED = 141  # 128 + SIGPIPE: the usual exit code after the reader of a pipe closed it


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _have_streams()
    code = 0
    try:
        if words == ["--version"]:
            print(f"shoal {__version__}")
        else:
            code = _command(words)
        sys.stdout.flush()
    except OSError as error:
        return _unwritten(error, code)
    return code


def _command(words: list[str]) -> int:
    from shoal.cli.root import run

    return run(words)


def _have_streams() -> None:
    """Replace closed standard streams, for which Python has None, so that other code need not check."""
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _unwritten(error: OSError, code: int) -> int:
    # The interpreter would report the unwritten buffer at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return code or PIPE_CLOSED
    if code == 0:
        print(f"shoal: the output cannot be written ({error.strerror}).", file=sys.stderr)
    return code or 1
