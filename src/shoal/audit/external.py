"""External analyzers: a command that reads pages as JSON lines and prints findings as JSON lines.

It runs below a process guard, with limits on time, memory, output and files. Whatever goes wrong, only the findings of
this analyzer are lost.
"""

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import orjson

from shoal.audit import process_guard
from shoal.audit.analyzer import Found, Needs
from shoal.audit.analyzer_run import AnalyzerError
from shoal.audit.artifacts import SAFE_NAME
from shoal.audit.finding import FindingCode, Severity
from shoal.audit.site import NUMBERS, TEXTS, Site
from shoal.base.parsing import show_duration, show_size
from shoal.base.text import clean, has_nul

ARTIFACTS: Final = "SHOAL_ARTIFACTS_DIR"
MOST_ARTIFACTS: Final = 100
LONGEST_ERROR: Final = 500  # characters of the command's stderr
MOST_FILES: Final = 10_000  # files while the command runs
DEEPEST: Final = 50  # levels of nested folders
_SECONDS_TO_DIE: Final = 2.0
_SECONDS_BETWEEN_LOOKS: Final = 0.2
_AT_ONCE: Final = 65_536  # bytes
_LINES_AT_ONCE: Final = 200
_CODE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SENT: Final = [
    name
    for name in (*NUMBERS, *TEXTS)
    if name not in ("number", "key", "flags", "fingerprint", "text_hash", "redirects")
]

Line = Annotated[str, msgspec.Meta(max_length=1_000)]


class ReportedFinding(msgspec.Struct, forbid_unknown_fields=True):
    """A line that an external analyzer prints."""

    code: Annotated[str, msgspec.Meta(max_length=64)]
    severity: Severity = Severity.WARNING
    page: Annotated[str, msgspec.Meta(max_length=4_096)] | None = None
    title: Line = ""
    fix: Line = ""
    evidence: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The limits of an external analyzer."""

    time: timedelta
    memory: int  # bytes
    output: int  # bytes on stdout, of its files, and of each file that it writes anywhere


class ExternalAnalyzer:
    """Runs a command as an analyzer. Its finding codes are known only after the command has ended."""

    needs = Needs(pages=TEXTS)

    def __init__(self, name: str, command: Sequence[str], limits: ProcessLimits) -> None:
        self.name = name
        self.codes: Sequence[FindingCode] = ()
        self.artifacts: list[tuple[str, bytes]] = []
        self._command = command
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def stop(self) -> None:
        """End the command now, or as soon as it has started; `analyze`, which runs in another thread, then raises."""
        self._stopped = True
        if self._process is not None:
            self._process.terminate()

    def analyze(self, site: Site) -> Iterator[Found]:
        with tempfile.TemporaryDirectory(prefix="shoal-", ignore_cleanup_errors=True) as folder:
            printed = self._run(site, Path(folder))
            self.artifacts = self._collect(Path(folder))
        reported = [self._read(line, number) for number, line in enumerate(printed.splitlines(), 1) if line.strip()]
        by_code: dict[str, list[ReportedFinding]] = {}
        for one in reported:
            by_code.setdefault(f"{self.name}.{one.code}", []).append(one)
        self.codes = [
            FindingCode(
                code, found[0].severity, found[0].title or code, found[0].fix or "See the analyzer's documentation."
            )
            for code, found in by_code.items()
        ]
        for code, found in by_code.items():
            yield _found(code, found)

    def _run(self, site: Site, folder: Path) -> bytes:
        """Run the command to completion and return what it printed."""
        limits = self._limits
        arguments = [os.getpid(), limits.memory, limits.output]
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", process_guard.__file__, *map(str, arguments), *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", ARTIFACTS: str(folder)},
            start_new_session=True,
        )
        self._process = process
        if self._stopped:
            process.terminate()
        problems: list[str] = []
        has_ended = threading.Event()
        timer = threading.Timer(limits.time.total_seconds(), process.terminate)
        # This timer is needed only if the command has stopped its own guard (SIGSTOP).
        last_timer = threading.Timer(limits.time.total_seconds() + _SECONDS_TO_DIE, _kill, [process])
        watcher = threading.Thread(target=self._watch, args=(folder, process, has_ended, problems))
        threads = (timer, last_timer, watcher)
        for thread in threads:
            thread.start()
        try:
            printed, errors = _exchange(process, page_lines(site), limits.output)
            if len(printed) <= limits.output:
                process.wait()  # it may have closed its pipes but still run; the timers end it
            is_late = not timer.is_alive()
        finally:
            has_ended.set()
            timer.cancel()
            last_timer.cancel()
            self._process = None
            _end(process)
            for thread in threads:
                thread.join()
        if problems:
            raise AnalyzerError(problems[0])
        if is_late:
            raise AnalyzerError(f"It was stopped after {show_duration(limits.time)}.")
        if len(printed) > limits.output:
            raise AnalyzerError(f"It printed more than {show_size(limits.output)}.")
        if process.returncode:
            raise AnalyzerError(f"It {_how_it_ended(process.returncode)}{_last_words(errors)}.")
        return printed

    def _watch(
        self, folder: Path, process: "subprocess.Popen[bytes]", has_ended: threading.Event, problems: list[str]
    ) -> None:
        """End the command if its files become too large or too many."""
        while not has_ended.wait(_SECONDS_BETWEEN_LOOKS):
            if (problem := self._excess(folder)) is not None:
                problems.append(problem)
                process.terminate()
                return

    def _excess(self, folder: Path) -> str | None:
        """Return a sentence about the limit that the files below a folder exceed; None if they exceed none."""
        files = size = 0
        folders = [(str(folder), 0)]
        for inner, depth in folders:
            try:
                with os.scandir(inner) as entries:
                    for entry in entries:
                        files += 1
                        size += entry.stat(follow_symlinks=False).st_size
                        if entry.is_dir(follow_symlinks=False):
                            folders.append((entry.path, depth + 1))
                        if size > self._limits.output:
                            return f"Its files have more than {show_size(self._limits.output)}."
                        if files > MOST_FILES or depth > DEEPEST:
                            return (
                                f"It wrote more than {MOST_FILES:,} files, or nested folders more than {DEEPEST} deep."
                            )
            except OSError:  # the file was removed
                continue
        return None

    def _read(self, line: bytes, number: int) -> ReportedFinding:
        try:
            found = msgspec.json.decode(line, type=ReportedFinding)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise AnalyzerError(f"Line {number} of its output is not a finding: {clean(str(error), 200)}.") from None
        if not _CODE.fullmatch(found.code):
            raise AnalyzerError(
                f'Line {number} of its output has the code "{clean(found.code, 60)}"; '
                "use lower-case letters, digits and _."
            )
        if has_nul(msgspec.to_builtins(found)):
            raise AnalyzerError(f"Line {number} of its output has a NUL character.")
        return found

    def _collect(self, folder: Path) -> list[tuple[str, bytes]]:
        """Return the files that the command left; links and folders are ignored."""
        if (problem := self._excess(folder)) is not None:
            raise AnalyzerError(problem)
        names = [path.name for path in folder.iterdir() if not path.is_symlink() and path.is_file()]
        kept = [name for name in sorted(names) if SAFE_NAME.fullmatch(name)][:MOST_ARTIFACTS]
        return [(f"{self.name}-{name}", (folder / name).read_bytes()) for name in kept]


def _found(code: str, found: list[ReportedFinding]) -> Found:
    return Found(
        code,
        urls=[one.page for one in found],
        evidence=lambda place: found[place].evidence,
        identity=lambda place: orjson.dumps(found[place].evidence, option=orjson.OPT_SORT_KEYS).decode(),
    )


def page_lines(site: Site) -> Iterator[bytes]:
    """Yield the input of an external analyzer: one line about the crawl, then one line for each page."""
    yield orjson.dumps({"shoal": 1, "pages": len(site.pages)}) + b"\n"
    columns: Mapping[str, Sequence[Any]] = {
        name: site.pages[name].tolist() if name in NUMBERS else site.pages.text(name) for name in _SENT
    } | {"depth": site.clicks.tolist()}
    for values in zip(*columns.values(), strict=True):
        page = dict(zip(columns, values, strict=True))
        page["status"] = page["status"] or None
        page["depth"] = None if page["depth"] < 0 else page["depth"]
        page["word_count"] = None if page["word_count"] < 0 else page["word_count"]
        yield orjson.dumps(page) + b"\n"


def _exchange(process: "subprocess.Popen[bytes]", lines: Iterator[bytes], limit: int) -> tuple[bytes, bytes]:
    """Send the lines to a process until it ends; return its stdout, up to a little more than the limit, and the end of
    its stderr. If a different process keeps a pipe open, this function does not wait for it."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    printed, errors, unsent = bytearray(), bytearray(), next(lines)
    for pipe in (process.stdin, process.stdout, process.stderr):
        os.set_blocking(pipe.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ, printed)
        selector.register(process.stderr, selectors.EVENT_READ, errors)
        has_ended = False
        while selector.get_map() and len(printed) <= limit:
            ready = selector.select(0 if has_ended else _SECONDS_BETWEEN_LOOKS)
            if has_ended and not any(key.data is not None for key, _ in ready):
                break  # all of its output was read
            has_ended = process.poll() is not None
            for key, _ in ready:
                if key.data is not None:
                    read = os.read(key.fd, _AT_ONCE)
                    key.data.extend(read)
                    del errors[: -4 * LONGEST_ERROR]
                    if not read:
                        selector.unregister(key.fileobj)
                    continue
                try:
                    unsent = unsent[os.write(key.fd, unsent) :] or b"".join(islice(lines, _LINES_AT_ONCE))
                except BrokenPipeError:  # the process has closed its stdin
                    unsent = b""
                if not unsent:
                    selector.unregister(process.stdin)
                    process.stdin.close()
    return bytes(printed), bytes(errors)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the command and everything that it started, and close its pipes."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_SECONDS_TO_DIE)
    _kill(process)
    process.wait(_SECONDS_TO_DIE)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process group of a command, which its guard leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _how_it_ended(code: int) -> str:
    if code in (128 + signal.SIGKILL, -signal.SIGKILL):
        return "was killed, probably because it used too much memory"
    name = next((one.name for one in signal.Signals if code == 128 + one), None)
    return f"ended with exit code {code}" if name is None else f"was ended by {name}"


def _last_words(errors: bytes) -> str:
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    return f": {clean(lines[-1], LONGEST_ERROR).rstrip('.')}" if lines else ""
