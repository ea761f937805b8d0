"""External analyzers, in real processes: what they get and may say, and that a bad one loses only its own findings."""

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
from shoal.audit.analyzers import plugins
from shoal.audit.external import ExternalAnalyzer, ProcessLimits
from shoal.audit.finding import FindingCode, Severity
from shoal.audit.site import NUMBERS, TEXTS, PageColumns, Site

LIMITS = ProcessLimits(timedelta(seconds=20), 1 << 30, 100_000)


def site_of(urls: list[str]) -> Site:
    numbers: dict[str, Any] = {name: np.zeros(len(urls), kind) for name, (kind, _) in NUMBERS.items()}
    numbers["status"][:] = 200
    texts: dict[str, list[str | None]] = {name: [None] * len(urls) for name in TEXTS}
    texts["url"] = list(urls)
    return Site(PageColumns(numbers, texts), urls=None)  # type: ignore[arg-type]


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
    assert result.findings[0].evidence == {"depth": 0}
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
        ("held = []\nwhile True: held.append(bytearray(50_000_000))", "It ended with exit code 1: MemoryError"),
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
