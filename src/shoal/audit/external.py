"""External analyzers: a command that reads pages as JSON lines and prints findings as JSON lines.

It runs in a process group of its own, with limits on time, memory and output. Whatever goes wrong, only the findings of
this analyzer are lost.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Annotated, Any, Final

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
LONGEST_ERROR: Final = 500  # characters of what it printed to stderr
_SECONDS_TO_DIE: Final = 5.0
_CODE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SENT: Final = [
    name for name in (*NUMBERS, *TEXTS) if name not in ("number", "key", "flags", "fingerprint", "redirects")
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
    output: int  # bytes on stdout, and of its artifacts


class ExternalAnalyzer:
    """Runs a command as an analyzer. Its codes are known once it has ended."""

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
            _kill(self._process)

    def analyze(self, site: Site) -> Iterator[Found]:
        with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
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
        guard = [sys.executable, "-I", "-S", process_guard.__file__, str(os.getpid()), str(self._limits.memory)]
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", ARTIFACTS: str(folder)}
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [*guard, *self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
            self._process = process
            if self._stopped:
                _kill(process)
            timer = threading.Timer(self._limits.time.total_seconds(), _kill, [process])
            timer.start()
            feeder = threading.Thread(target=_feed, args=(process.stdin, site), daemon=True)
            feeder.start()
            try:
                assert process.stdout is not None
                printed = process.stdout.read(self._limits.output + 1)
                if len(printed) > self._limits.output:
                    raise AnalyzerError(f"It printed more than {show_size(self._limits.output)}.")
                code = process.wait()
                if not timer.is_alive():
                    raise AnalyzerError(f"It was stopped after {show_duration(self._limits.time)}.")
            finally:
                timer.cancel()
                _kill(process)
                self._process = None
                process.wait(_SECONDS_TO_DIE)
                feeder.join(_SECONDS_TO_DIE)
                process.stdout.close()  # type: ignore[union-attr]
            if code:
                raise AnalyzerError(f"It {_how_it_ended(code)}{_last_words(errors)}.")
        return printed

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
        """Return the files that it left; links and folders are ignored."""
        found, left = [], self._limits.output
        for path in sorted(folder.iterdir())[:MOST_ARTIFACTS]:
            if path.is_symlink() or not path.is_file() or not SAFE_NAME.fullmatch(path.name):
                continue
            left -= path.stat().st_size
            if left < 0:
                raise AnalyzerError(f"Its files have more than {show_size(self._limits.output)}.")
            found.append((f"{self.name}-{path.name}", path.read_bytes()))
        return found


def _found(code: str, found: list[ReportedFinding]) -> Found:
    return Found(
        code,
        urls=[one.page for one in found],
        evidence=lambda place: found[place].evidence,
        identity=lambda place: orjson.dumps(found[place].evidence, option=orjson.OPT_SORT_KEYS).decode(),
    )


def page_lines(site: Site) -> Iterator[bytes]:
    """Yield what an external analyzer reads: one line about the crawl, then one for each page."""
    yield orjson.dumps({"shoal": 1, "pages": len(site.pages)}) + b"\n"
    columns: Mapping[str, Sequence[Any]] = {
        name: site.pages[name].tolist() if name in NUMBERS else site.pages.text(name) for name in _SENT
    }
    for values in zip(*columns.values(), strict=True):
        page = dict(zip(columns, values, strict=True))
        page["status"] = page["status"] or None
        page["word_count"] = None if page["word_count"] < 0 else page["word_count"]
        yield orjson.dumps(page) + b"\n"


def _feed(stdin: IO[bytes] | None, site: Site) -> None:
    assert stdin is not None
    try:
        with stdin:
            stdin.writelines(page_lines(site))
    except (BrokenPipeError, ValueError):
        return  # it does not want to read more


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End the command and everything that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _how_it_ended(code: int) -> str:
    if code == 128 + signal.SIGKILL:
        return "was killed, probably because it used too much memory"
    name = next((one.name for one in signal.Signals if code == 128 + one), None)
    return f"ended with exit code {code}" if name is None else f"was ended by {name}"


def _last_words(errors: IO[bytes]) -> str:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - 4 * LONGEST_ERROR))
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return f": {clean(lines[-1], LONGEST_ERROR).rstrip('.')}" if lines else ""
