"""Logs: one line per signal, as JSON or as text, and the log files of projects."""

import fcntl
import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, TextIO

from shoal.base.clock import Clock
from shoal.base.machine import make_private, open_private
from shoal.base.settings import LogSettings
from shoal.base.signals import Signal
from shoal.base.text import HIDDEN, clean, names_a_secret
from shoal.observe.log_messages import LogLevel, LogLine, level_of, log_line

# The documented fields come first, in this order; all other fields follow in their given order.
ORDER = (
    "job_id",
    "correlation_id",
    "crawl_id",
    "analysis_id",
    "node_id",
    "attempt",
    "max_attempts",
    "url",
)
OWN = frozenset({"timestamp", "level", "event", "msg"})
DEEPEST = 4
MOST_ITEMS = 100
COLOURS = {LogLevel.DEBUG: "2", LogLevel.INFO: "36", LogLevel.WARNING: "33", LogLevel.ERROR: "31"}


class Logs:
    """The log stream of a process. Its methods never raise, so a log that cannot be written stops nothing."""

    def __init__(self, settings: LogSettings, clock: Clock, stream: TextIO | None = None) -> None:
        self._given = stream
        self._clock = clock
        self._lock = threading.Lock()
        self.level = LogLevel[settings.level.upper()]
        self._as_text = settings.format == "text" or (settings.format == "auto" and self._stream.isatty())
        self._colour = self._as_text and has_colour(self._stream)

    @property
    def _stream(self) -> TextIO:
        """The given stream, or else the current `sys.stderr`: a live status line replaces it by a stream that writes
        above the line."""
        return sys.stderr if self._given is None else self._given

    def listen(self, signal: Signal) -> None:
        if level_of(signal) >= self.level:
            self.write(log_line(signal))

    def say(self, level: LogLevel, event: str, message: str, **facts: Any) -> None:
        self.write(LogLine(level, event, message, facts))

    def write(self, line: LogLine) -> None:
        if line.level < self.level:
            return
        text = self._text(line) if self._as_text else self._json(line)
        try:
            with self._lock:
                self._stream.write(text + "\n")
                self._stream.flush()
        except (OSError, ValueError):  # a closed or full stream: the error cannot be reported anywhere
            return

    def _json(self, line: LogLine) -> str:
        now = self._clock.now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        head = {"timestamp": now, "level": line.level.name.lower()}
        body = {"event": clean(line.event), "msg": clean(line.message)}
        return json.dumps(head | body | safe_facts(line.facts), ensure_ascii=False, separators=(",", ":"))

    def _text(self, line: LogLine) -> str:
        time = self._clock.now().strftime("%H:%M:%SZ")
        message = clean(line.message)
        said = safe_facts(line.facts).items()
        facts = " ".join(_brief(name, value) for name, value in said if str(value) not in message)
        if not self._colour:
            return f"{time} {line.level.name:<7} {message}  {facts}".rstrip()
        level = f"\x1b[{COLOURS[line.level]}m{line.level.name:<7}\x1b[0m"
        return f"\x1b[2m{time}\x1b[0m {level} {message}  \x1b[2m{facts}\x1b[0m"


def note(text: str) -> None:
    """Print a line for the user on stderr. Data is never printed by this function."""
    print(as_called(clean(text)), file=sys.stderr, flush=True)


def as_called(text: str) -> str:
    """Return advice in which `shoal` is replaced by the launcher's name, so that commands can be copied."""
    command = os.environ.get("SHOAL_COMMAND", "shoal")
    return text if command == "shoal" else re.sub('(?<=[`"])shoal(?= )', lambda _: command, text)


def has_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def safe_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in the documented order. Every value is sanitized, and values whose names indicate secrets are
    hidden."""
    first = {name: facts[name] for name in ORDER if name in facts}
    named = ((f"{name}_" if name in OWN else clean(name), name, value) for name, value in (first | dict(facts)).items())
    return {key: safe(name, value) for key, name, value in named}


def safe(name: str, value: Any, depth: int = 0) -> Any:
    """Return a value in a form that JSON can represent and that is safe to log."""
    if value is None or isinstance(value, bool | int):
        return value
    if names_a_secret(name):
        return HIDDEN
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _safe_items(name, value, depth) if depth < DEEPEST else "…"
    return clean(_plain(value))


def _plain(value: Any) -> str:
    match value:
        case Enum():
            return str(value.value)
        case datetime():
            return value.isoformat()
        case timedelta():
            return f"{value.total_seconds():g}s"
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case _:
            return str(value)


def _safe_items(name: str, value: Mapping[Any, Any] | Iterable[Any], depth: int) -> Any:
    if isinstance(value, Mapping):
        pairs = list(value.items())[:MOST_ITEMS]
        return {clean(str(key)): safe(str(key), item, depth + 1) for key, item in pairs}
    return [safe(name, item, depth + 1) for item in list(value)[:MOST_ITEMS]]


def _brief(name: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{name}={json.dumps(text, ensure_ascii=False) if ' ' in text else text}"


class Bridge(logging.Handler):
    """Forwards log records of the standard library to `Logs`."""

    def __init__(self, logs: Logs) -> None:
        super().__init__()
        self._logs = logs

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = {"logger": record.name}
        if record.exc_info and record.exc_info[1] is not None:
            facts["error"] = repr(record.exc_info[1])
            facts["traceback"] = traceback.format_exception(record.exc_info[1])
        level = max((level for level in LogLevel if level <= record.levelno), default=LogLevel.DEBUG)
        try:
            message = record.getMessage()
        except Exception:  # an invalid format string in a library must not suppress its message
            message = f"{record.msg} {record.args}"
        self._logs.say(level, "log", message, **facts)


# Libraries that log every request or connection at INFO; Shoal's log lines are more useful.
QUIET = ("asyncio", "uvicorn.access", "uvicorn.error", "httpx")
SILENT = ("asyncpg.pool",)  # an unreachable store is logged once, by Shoal


def capture_stdlib(logs: Logs) -> None:
    """Send the log records of all libraries, and Python's warnings, to `logs`. Earlier handlers are removed."""
    root = logging.getLogger()
    root.handlers[:] = [Bridge(logs)]
    root.setLevel(max(logs.level, LogLevel.INFO))
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    for name in QUIET:
        logging.getLogger(name).setLevel(LogLevel.WARNING)
    silence()
    logging.captureWarnings(True)


def silence() -> None:
    """Silence libraries whose log records duplicate Shoal's."""
    for name in SILENT:
        logging.getLogger(name).setLevel(logging.CRITICAL)


_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
LOCK = ".rotating"


class ProjectLogs:
    """The folder of log files. A file that reaches `size` bytes is renamed to `.1`, the previous `.1` to `.2`, and so
    on; `kept` old files are kept."""

    def __init__(self, folder: Path, size: int, kept: int) -> None:
        self._folder = folder
        self._size = size
        self._kept = kept

    def path_of(self, project: str) -> Path:
        return self._folder / f"{safe_name(project)}.log"

    def append(self, project: str, lines: list[bytes]) -> None:
        """Append these lines in one write. On OSError, no line was written, or only as many bytes as fitted."""
        make_private(self._folder)
        path = self.path_of(project)
        text = b"".join(line + b"\n" for line in lines)
        file = open_private(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            written = os.write(file, text)
            is_large = os.fstat(file).st_size >= self._size
        finally:
            os.close(file)
        if written < len(text):
            raise OSError(f"only {written} of {len(text)} bytes fitted into {path.name}")
        if is_large:
            self._put_aside(path)

    def _put_aside(self, path: Path) -> None:
        """Rotate the file under a lock. If a different process has already rotated it, the file is small, and nothing
        is done."""
        lock = open_private(str(self._folder / LOCK), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists() or path.stat().st_size < self._size:
                return
            for number in range(self._kept, 0, -1):
                older = self._set_aside_path(path, number)
                if older.exists() and number == self._kept:
                    older.unlink()
                elif older.exists():
                    older.rename(self._set_aside_path(path, number + 1))
            path.rename(self._set_aside_path(path, 1))
        finally:
            os.close(lock)

    def _set_aside_path(self, path: Path, number: int) -> Path:
        return path.with_name(f"{path.name}.{number}")


def safe_name(project: str) -> str:
    """Return a file name that contains no path, is not hidden and not too long."""
    name = _UNSAFE.sub("_", project)[:100]
    return f"_{name}" if not name or name.startswith(".") else name
