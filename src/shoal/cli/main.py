"""The entry point of `shoal`. For speed, it handles `--version` and `-V` here and passes everything else to `root`."""

import os
import sys
from collections.abc import Sequence

from shoal import __version__

PIPE_CLOSED = 141  # 128 + SIGPIPE: the usual exit code after the reader of a pipe closed it


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _have_streams()
    try:
        if words in (["--version"], ["-V"]):
            print(f"shoal {__version__}", flush=True)
            return 0
        if instruction := os.environ.get("_SHOAL_COMPLETE"):
            from shoal.cli.completion import complete

            complete(instruction)
            return 0
        from shoal.cli.root import run

        return run(words)
    except BrokenPipeError:
        return PIPE_CLOSED
    except OSError as error:
        from shoal.cli.root import tell

        return tell(error, as_json=False)
    finally:
        _drop_unwritten()


def _have_streams() -> None:
    """Replace closed standard streams, which are None in Python, so that other code need not check for None."""
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _drop_unwritten() -> None:
    """Drop output that could not be written. The error was reported; the interpreter would report it again at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
