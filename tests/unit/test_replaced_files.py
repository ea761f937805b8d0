"""Files that commands write: a user's own file is never replaced, an earlier output of Shoal's is."""

import gzip
from pathlib import Path

import pytest

from shoal.audit.diff_formats import COLUMNS as DIFF_COLUMNS
from shoal.audit.reports.formats import FORMATS, FormatName
from shoal.audit.verdict import Outcome
from shoal.base.errors import InvalidInput
from shoal.cli.analyses import FLAGS, ReportFiles
from shoal.cli.main import main
from shoal.crawl.dump import is_dump
from shoal.pages.export.output import may_replace
from shoal.pages.export.part_file import check_replace
from shoal.pages.export.warc import WarcOutput
from tests.support.audit_reports import report_with, verdict_of

OWN = "my own\n"
THERE = "exists and does not look like an output of Shoal's; choose another name, or remove the file first."


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        *((("audit", "http://127.0.0.1:1/", flag, "mine.csv"), flag) for flag, _ in FLAGS.values()),
        *((("analyses", "report", "anl_1", flag, "mine.csv"), flag) for flag, _ in FLAGS.values()),
        (("crawls", "diff", "a", "b", "--output", "mine.csv"), "--output"),
        (("crawls", "dump", "a", "--output", "mine.csv"), "--output"),
        (("policies", "export", "mine.csv"), "FILE"),
        (("fetch", "http://127.0.0.1:1/", "--format", "links", "--output", "mine.csv"), "--output"),
    ],
)
def test_a_file_of_the_user_is_never_replaced(
    words: tuple[str, ...],
    flag: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/shoal.db")
    (tmp_path / "mine.csv").write_text(OWN)
    assert main(list(words)) == 2
    assert f"{flag} 'mine.csv' {THERE}" in capsys.readouterr().err
    assert (tmp_path / "mine.csv").read_text() == OWN
    assert not (tmp_path / "shoal.db").exists()  # refused before any work


@pytest.mark.parametrize("name", list(FLAGS))
@pytest.mark.parametrize("report", [report_with(), report_with(verdict_of(Outcome.FAILED, "few"), "it broke")])
async def test_a_report_is_replaced_by_a_report_in_the_same_format(
    name: FormatName, report: object, tmp_path: Path
) -> None:
    path = tmp_path / "report"
    path.write_text(FORMATS[name].write(report))  # type: ignore[arg-type]
    for other in FLAGS:
        files = ReportFiles({other: str(path)})
        if other == name:
            files.check()
        else:
            with pytest.raises(InvalidInput, match="does not look like"):
                files.check()


def test_dumps_and_differences_are_recognized(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    dump = b'{"shoal_frontier":1,"key_seed":"00"}\n' * 1000
    for content in (dump, gzip.compress(dump)):
        path.write_bytes(content)
        assert is_dump(str(path))
    for content in (OWN.encode(), b"\x1f\x8b", gzip.compress(b"mine"), b'{"shoal": 1}'):
        path.write_bytes(content)
        assert not is_dump(str(path))
    path.write_text(",".join(f'"{name}"' for name in DIFF_COLUMNS) + "\r\n")
    assert may_replace(str(path), DIFF_COLUMNS)


def test_a_table_of_an_earlier_version_is_replaced_and_a_short_list_is_not(tmp_path: Path) -> None:
    path, columns = tmp_path / "a.csv", [f"column{number}" for number in range(20)]
    path.write_text(",".join(columns[:15]) + "\n")
    assert may_replace(str(path), columns)
    path.write_text(",".join(columns[:5]) + "\n")
    assert not may_replace(str(path), columns)


def test_the_index_of_an_archive_is_not_written_over_another_file(tmp_path: Path) -> None:
    index = tmp_path / "a.cdxj"
    index.write_text(OWN)
    with pytest.raises(InvalidInput, match=r"a\.cdxj' exists and does not look like"):
        WarcOutput(str(tmp_path / "a.warc.gz")).check()
    index.write_text('com,example)/ 20260101000000 {"url": "https://example.com/"}\n')
    WarcOutput(str(tmp_path / "a.warc.gz")).check()


def test_at_a_terminal_the_user_decides(tmp_path: Path) -> None:
    path = str(tmp_path / "a.txt")
    check_replace(path, lambda: False)  # there is no such file
    Path(path).touch()
    check_replace(path, lambda: False)  # nothing is lost
    Path(path).write_text(OWN)
    asked = []

    def agree(name: str, what: str) -> bool:
        asked.append((name, what))
        return True

    check_replace(path, lambda: False, agree)
    assert asked == [(path, "exists and does not look like an output of Shoal's")]
    with pytest.raises(InvalidInput, match=r"^--html "):
        check_replace(path, lambda: True, lambda name, what: False, called="--html")
