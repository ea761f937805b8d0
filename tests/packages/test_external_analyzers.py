"""External analyzers, in real processes: what they get and may say, and that a bad one loses only its own findings."""

import os
import resource
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.audit.analyzer import Needs
from shoal.audit.analyzer_run import AnalyzerError, AnalyzerResult, run_analyzer
from shoal.audit.analyzers import registry as plugins
from shoal.audit.external import ExternalAnalyzer, ProcessLimits
from shoal.audit.finding import FindingCode, Severity
from shoal.audit.site import NUMBERS, TEXTS, PageColumns, Site

LIMITS = ProcessLimits(timedelta(seconds=20), 1 << 30, 100_000)


def site_of(urls: list[str]) -> Site:
    numbers: dict[str, Any] = {name: np.zeros(len(urls), kind) for name, (kind, _) in NUMBERS.items()}
    numbers["status"][:] = 200
    texts: dict[str, list[str | None]] = {name: [None] * len(urls) for name in TEXTS}
    texts["url"] = list(urls)
    site = Site(PageColumns(numbers, texts), urls=None)  # type: ignore[arg-type]
    site.clicks = np.array([0, -1][: len(urls)], np.int32)
    return site


SITE = site_of(["https://a.test/", "https://a.test/b"])


@pytest.fixture
def analyze(tmp_path: Path) -> Callable[..., AnalyzerResult]:
    def run(program: str, limits: ProcessLimits = LIMITS, site: Site = SITE) -> AnalyzerResult:
        file = tmp_path / "analyzer.py"
        file.write_text(program)
        analyzer = ExternalAnalyzer("mine", [sys.executable, "-S", str(file)], limits)
        result = run_analyzer(analyzer, site, 10)
        run.artifacts = analyzer.artifacts  # type: ignore[attr-defined]
        return result

    return run


GOOD = """
import json, os, sys
head, *pages = [json.loads(line) for line in sys.stdin]
assert head == {"shoal": 1, "pages": 2}, head
assert pages[0]["status"] == 200 and pages[0]["title"] is None and pages[0]["word_count"] == 0
open(os.path.join(os.environ["SHOAL_ARTIFACTS_DIR"], "raw.txt"), "w").write("all of it")
for page in pages:
    print(json.dumps({"code": "seen", "severity": "notice", "page": page["url"], "title": "Seen.", "fix": "None.",
                      "evidence": {"depth": page["depth"]}}))
"""


def test_findings_and_files_of_a_command_are_taken(analyze: Callable[..., AnalyzerResult]) -> None:
    result = analyze(GOOD)
    [count] = result.counts
    assert (count.code, count.severity, count.title, count.count) == ("mine.seen", Severity.NOTICE, "Seen.", 2)
    assert [finding.page for finding in result.findings] == ["https://a.test/", "https://a.test/b"]
    assert [finding.evidence for finding in result.findings] == [{"depth": 0}, {"depth": None}]
    assert analyze.artifacts == [("mine-raw.txt", b"all of it")]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("print('hello')", "Line 1 of its output is not a finding"),
        ('print(\'{"code": "a"}\'); print(\'{"code": 3}\')', "Line 2 of its output is not a finding"),
        ('print(\'{"code": "Not A Code"}\')', 'Line 1 of its output has the code "Not A Code"'),
        ('print(\'{"code": "a", "severity": "huge"}\')', "Line 1 of its output is not a finding"),
        ('print(\'{"code": "a", "page": "\\\\u0000"}\')', "Line 1 of its output has a NUL character"),
        ("import sys; sys.exit(137)", "It was killed, probably because it used too much memory"),
        ("import sys; sys.exit('no dictionary')", "It ended with exit code 1: no dictionary."),
        ("import os; os.kill(os.getpid(), 11)", "It was ended by SIGSEGV"),
        ("print('x' * 200_000)", "It printed more than 100KB."),
        ("held = bytearray(2_000_000_000)", "It ended with exit code 1: MemoryError"),
    ],
)
def test_a_bad_command_fails_with_the_reason(analyze: Callable[..., AnalyzerResult], program: str, says: str) -> None:
    with pytest.raises(AnalyzerError) as failed:
        analyze(program)
    assert str(failed.value).startswith(says)


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import subprocess\nsubprocess.run(['sleep', '600'])",
        "import sys; sys.stdin.read(1)\nwhile True: pass",
    ],
)
def test_a_command_that_never_ends_is_stopped_with_all_it_started(
    analyze: Callable[..., AnalyzerResult], program: str
) -> None:
    with pytest.raises(AnalyzerError, match="It was stopped after 300ms"):
        analyze(program, ProcessLimits(timedelta(milliseconds=300), 1 << 30, 1_000))


ESCAPED = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({file!r}, "w").write(str(os.getpid()))
        {does}
        time.sleep(600)
    os._exit(0)
while not os.path.exists({file!r}): pass
{then}
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("does", "then", "says"),
    [
        ("pass", "time.sleep(600)", "It was stopped after 10?s"),  # it holds stdin, stdout and stderr
        ("os.close(0); os.close(1); os.close(2)", "time.sleep(600)", "It was stopped after 10?s"),
        ("pass", "os.kill(os.getppid(), 19); time.sleep(600)", "It was stopped after 10?s"),  # stops its guard
        ("pass", "sys.exit(3)", "It ended with exit code 3"),
    ],
)
def test_what_escapes_into_a_session_of_its_own_ends_too(
    analyze: Callable[..., AnalyzerResult], tmp_path: Path, does: str, then: str, says: str
) -> None:
    file = tmp_path / "pid"
    for seconds in (1, 10):
        limits = ProcessLimits(timedelta(seconds=seconds), 1 << 30, 1_000)
        with pytest.raises(AnalyzerError, match=says):
            analyze(ESCAPED.format(file=str(file), does=does, then=then), limits)
        if file.exists():  # the machine was not too busy to start it in time
            break
    if "getppid" in then:  # then nothing can end it, and nothing waits for it
        os.kill(int(file.read_text()), signal.SIGKILL)
    else:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


def test_only_the_end_of_what_a_command_writes_to_stderr_is_kept(analyze: Callable[..., AnalyzerResult]) -> None:
    program = "import sys\nfor _ in range(2_000): sys.stderr.write('x' * 50_000 + '\\n')\nsys.exit('the end')"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(AnalyzerError, match="It ended with exit code 1: the end"):
        analyze(program)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("for n in range(9):\n open(f'f{n}', 'w').write('x' * 90_000)", "Its files have more than 100KB"),
        ("for n in range(10_001): open(f'f{n}', 'w')", "It wrote more than 10,000 files"),
        (
            "import os\nfor n in range(60): os.mkdir('d'); os.chdir('d')",
            "or nested folders more than 50 deep|Its files have",
        ),
        ("open('f', 'w').write('x' * 200_000)", "It ended with exit code 1: OSError: .* File too large"),
    ],
)
@pytest.mark.parametrize("then", ["", "import time; time.sleep(600)"], ids=["ends", "runs on"])
def test_a_command_whose_files_exceed_the_limits_is_stopped(
    analyze: Callable[..., AnalyzerResult], program: str, says: str, then: str
) -> None:
    with pytest.raises(AnalyzerError, match=says):
        analyze(f"{program}\n{then}")


def test_a_command_may_close_its_pipes_before_it_ends(analyze: Callable[..., AnalyzerResult]) -> None:
    closed = 'import os, time\nprint(\'{"code": "a"}\', flush=True)\nfor fd in range(3): os.close(fd)\n'
    assert analyze(f"{closed}time.sleep(0.5); os._exit(0)").outcome.findings == 1
    with pytest.raises(AnalyzerError, match="It was stopped after 500ms"):
        analyze(f"{closed}time.sleep(600)", ProcessLimits(timedelta(milliseconds=500), 1 << 30, 1_000))


def test_an_analyzer_with_too_many_codes_fails(analyze: Callable[..., AnalyzerResult]) -> None:
    with pytest.raises(AnalyzerError, match="It reported more than 200 codes"):
        analyze('for n in range(5_000): print(\'{"code": "c%d"}\' % n)')


def test_a_command_that_reads_nothing_gets_a_large_crawl(analyze: Callable[..., AnalyzerResult]) -> None:
    site = site_of([f"https://a.test/{number}" for number in range(20_000)])
    site.clicks = np.zeros(20_000, np.int32)
    assert analyze('print(\'{"code": "a"}\')', site=site).outcome.findings == 1
    counted = 'import sys\nprint(\'{"code": "a", "evidence": {"lines": %d}}\' % len(list(sys.stdin)))'
    assert analyze(counted, site=site).findings[0].evidence == {"lines": 20_001}


def test_a_command_that_does_not_exist_is_an_error_of_its_analyzer() -> None:
    with pytest.raises(AnalyzerError, match="No such file"):
        run_analyzer(ExternalAnalyzer("mine", ["/nowhere/at-all"], LIMITS), SITE, 10)


class Plug:
    name = "acme"
    codes = (FindingCode("acme.bad", Severity.ERROR, "Bad.", "Mend it."),)
    needs = Needs()

    def analyze(self, site: Site) -> list[Any]:
        return []


class Misnamed(Plug):
    codes = (FindingCode("broken_link", Severity.ERROR, "Bad.", "Mend it."),)


class Codeless:
    name = "acme"
    needs = Needs()

    def analyze(self, site: Site) -> list[Any]:
        return []


class Exiting(Plug):
    def analyze(self, site: Site) -> list[Any]:
        sys.exit(3)


def broken() -> None:
    raise RuntimeError("it lacks a library")


@pytest.mark.parametrize(
    ("target", "name", "problem"),
    [
        ("Plug", "acme", None),
        ("Plug", "other", "Its attribute name is acme, not that of its entry point."),
        ("Misnamed", "acme", "Its code broken_link does not begin with acme."),
        ("broken", "acme", "It does not load (RuntimeError: it lacks a library)."),
        ("nothing", "acme", "It does not load"),
        ("Path", "acme", "Its attribute name is "),
        ("Codeless", "acme", "It does not load (AttributeError: 'Codeless' object has no attribute 'codes')."),
        ("Exiting", "acme", "It ended its process with exit code 3."),
    ],
)
def test_plug_ins_are_loaded_from_entry_points_and_bad_ones_are_reported(
    monkeypatch: pytest.MonkeyPatch, target: str, name: str, problem: str | None
) -> None:
    point = EntryPoint(name, f"{__name__}:{target}", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point] if group == "shoal.analyzers" else [])
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    [analyzer] = plugins.installed()
    assert analyzer.name == name
    if problem is None:
        assert run_analyzer(analyzer, SITE, 10).outcome.error is None
    else:
        with pytest.raises(AnalyzerError) as failed:
            run_analyzer(analyzer, SITE, 10)
        assert str(failed.value).startswith(problem)
