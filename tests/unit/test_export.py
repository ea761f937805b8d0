"""Outputs: every format holds the whole record, a spreadsheet runs nothing of it, and a file has its name when it is
complete."""

import csv
import errno
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.base.clock import SystemClock
from shoal.base.errors import BadConfig, InvalidInput, StorageFull
from shoal.drivers.folder_bodies import FolderBodies
from shoal.egress import Limits
from shoal.pages.export.formats import CLIPPED, FORMULA, LONGEST_CELL, Csv, JsonLines, cell, safe_text
from shoal.pages.export.output import ExportFilter, Output, Outputs, output_of
from shoal.pages.page import RECORD_FIELDS, Page

CRAWL = "crl_1"
NO_BODIES = FolderBodies(Path("nowhere"), SystemClock())
FETCHED_AT = 1_790_000_000_123_456
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def page(**facts: Any) -> Page:
    return Page(**{"url": "http://a.example/", "depth": 0, "fetched_at": FETCHED_AT, "attempt": 1} | facts)


def full_page() -> Page:
    return page(
        final_url="http://a.example/b",
        status=200,
        depth=2,
        parent="http://a.example/p",
        bytes=123,
        title='Fish, "chips"\nand peas',
        word_count=7,
        redirects=[{"url": "http://a.example/", "status": 301}],
        duration_ms=1.5,
        rendered=True,
        render_wait="settled",
        error_code="body_too_large",
        error_message="It was large.",
        data={"price": 3},
    )


def csv_rows(pages: Sequence[Page]) -> list[dict[str, str]]:
    written = Csv().head() + b"".join(Csv().rows(page.record(CRAWL) for page in pages))
    return list(csv.DictReader(io.StringIO(written.decode(), newline=""), strict=True))


def json_rows(pages: Sequence[Page]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in b"".join(JsonLines().rows(page.record(CRAWL) for page in pages)).splitlines()]


def test_a_record_has_every_field_in_its_order() -> None:
    assert tuple(full_page().record(CRAWL)) == RECORD_FIELDS
    assert tuple(json_rows([page()])[0]) == RECORD_FIELDS
    assert Csv().head().decode() == ",".join(f'"{name}"' for name in RECORD_FIELDS) + "\r\n"


def test_a_record_of_an_older_server_is_read() -> None:
    record = json_rows([full_page()])[0]
    assert Page.of(record) == full_page()
    del record["render_wait"]
    assert Page.of(record) == replace(full_page(), render_wait=None)


def test_a_json_line_says_what_the_page_was() -> None:
    record = json_rows([full_page()])[0]
    assert record["crawl_id"] == CRAWL
    assert record["title"] == 'Fish, "chips"\nand peas'
    assert record["fetched_at"] == "2026-09-21T14:13:20.123456Z"
    assert record["error"] == {"code": "body_too_large", "message": "It was large."}
    assert record["redirects"] == [{"url": "http://a.example/", "status": 301}]
    assert record["data"] == {"price": 3}
    assert json_rows([page()])[0]["error"] is None


@pytest.mark.parametrize("micros", [0, 1, FETCHED_AT, FETCHED_AT + 1, 4_102_444_800_999_999])
def test_the_time_of_a_record_is_exact_to_the_microsecond(micros: int) -> None:
    at = page(fetched_at=micros).record(CRAWL)["fetched_at"]
    assert round(at.timestamp()) == round(micros / 1e6)
    assert at.microsecond == micros % 1_000_000


def test_csv_and_jsonl_hold_the_same_record() -> None:
    [cells] = csv_rows([full_page()])
    record = json_rows([full_page()])[0]
    for name in RECORD_FIELDS:
        value = record[name]
        if value is None:
            assert cells[name] == ""
        elif isinstance(value, bool | dict | list):
            assert json.loads(cells[name]) == value
        else:
            assert cells[name] == str(value)
    assert cells["error"] == '{"code":"body_too_large","message":"It was large."}'


def test_text_is_always_quoted_and_numbers_never() -> None:
    line = b"".join(Csv().rows([full_page().record(CRAWL)])).decode()
    assert '"http://a.example/b",200,2,"http://a.example/p"' in line
    assert '"Fish, ""chips""\nand peas"' in line
    assert line.endswith("\r\n")


@pytest.mark.parametrize("text", ["=cmd|'/c calc'!A1", "+1", "-1", "@x", "\tx", "\rx", "\0=1+1"])
def test_a_formula_stays_text(text: str) -> None:
    [cells] = csv_rows([page(title=text)])
    assert cells["title"] == "'" + text.replace("\0", "")


@pytest.mark.parametrize("number", [-1, -1.5, 0, 10**15])
def test_a_number_is_left_as_it_is(number: float) -> None:
    assert cell(number) == number
    [cells] = csv_rows([page(duration_ms=number)])
    assert float(cells["duration_ms"]) == number


def test_a_cell_is_clipped_to_what_a_spreadsheet_takes_and_says_so() -> None:
    [cells] = csv_rows([page(title="x" * 1_000_000, h1="=" + "y" * LONGEST_CELL, description="z" * LONGEST_CELL)])
    assert len(cells["title"]) == len(cells["h1"]) == LONGEST_CELL
    assert cells["title"].endswith(CLIPPED)
    assert cells["description"] == "z" * LONGEST_CELL


@given(TEXT)
def test_no_text_is_read_back_as_a_formula_or_as_another_text(text: str) -> None:
    [cells] = csv_rows([page(title=text)])
    read = cells["title"]
    assert not read.startswith(FORMULA)
    assert "\0" not in read
    assert read.removeprefix("'") == text.replace("\0", "").removeprefix("'")


@given(st.lists(st.tuples(TEXT, TEXT), max_size=5))
def test_every_page_is_one_row_whatever_is_in_it(texts: list[tuple[str, str]]) -> None:
    pages = [page(title=title, description=description, data={title: description}) for title, description in texts]
    rows = csv_rows(pages)
    assert [row["description"] for row in rows] == [safe_text(description) for _, description in texts]
    assert [orjson.loads(row["data"]) for row in rows] == [{title: description} for title, description in texts]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_an_output_has_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    names = [str(tmp_path / "a.jsonl"), str(tmp_path / "a.csv")]
    outputs = Outputs(names)
    await outputs.open(CRAWL, FETCHED_AT, Limits())
    await outputs.write([full_page(), page()], NO_BODIES)
    assert names_in(tmp_path) == ["a.csv.part", "a.jsonl.part"]
    assert outputs.locations == [f"{name}.part" for name in names]
    await outputs.complete()
    assert names_in(tmp_path) == ["a.csv", "a.jsonl"]
    assert outputs.locations == names
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 2


def test_the_leftover_of_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.part").write_text("half a li")
    (tmp_path / "a.jsonl").write_text("old\n")
    output = output_of(str(tmp_path / "a.jsonl"))
    assert (tmp_path / "a.jsonl.part").read_text() == "half a li"  # it is not changed before it is opened
    output.open(CRAWL, FETCHED_AT, Limits())
    output.write([page()], {})
    output.leave()
    assert (tmp_path / "a.jsonl").read_text() == "old\n"
    assert (tmp_path / "a.jsonl.part").read_bytes() == b"".join(JsonLines().rows([page().record(CRAWL)]))


async def test_a_crawl_without_pages_gives_outputs_without_rows(tmp_path: Path) -> None:
    outputs = Outputs([str(tmp_path / "a.jsonl"), str(tmp_path / "a.csv")])
    await outputs.open(CRAWL, FETCHED_AT, Limits())
    await outputs.complete()
    assert (tmp_path / "a.jsonl").read_bytes() == b""
    assert (tmp_path / "a.csv").read_bytes() == Csv().head()


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.warc.gz"])
def test_a_full_disk_is_reported_and_nothing_gets_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.part").symlink_to("/dev/full")
    output = output_of(str(tmp_path / name))
    output.open(CRAWL, FETCHED_AT, Limits())
    with pytest.raises(StorageFull) as told:
        fill(output)
    assert getattr(told.value.__cause__, "errno", None) == errno.ENOSPC
    output.leave()
    assert not (tmp_path / name).exists()


def fill(output: Output) -> None:
    output.write([full_page()] * 1000, {})
    output.complete()


@pytest.mark.parametrize("name", ["pages", "pages.doc", "pages.jsonl.gz", ".csv", ".warc.gz", "pages.gz", ""])
def test_an_ending_that_means_nothing_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"\.jsonl, \.json, \.csv, \.parquet, \.warc\.gz, \.md, or -"):
        output_of(name)


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_crawled(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for name in ("nowhere/a.csv", "folder.csv"):
        with pytest.raises(BadConfig, match="cannot be written"):
            output_of(str(tmp_path / name))
    with pytest.raises(InvalidInput, match="twice"):
        Outputs(["a.csv", "a.csv"])
    with pytest.raises(InvalidInput, match="twice"):
        Outputs([str(tmp_path / "a.csv"), str(tmp_path / "folder.csv/../a.csv")])


def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record every path that is synced to disk from now on, under its name at that time."""
    paths: list[str] = []
    fsync = os.fsync

    def note(handle: int) -> None:
        paths.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    return paths


async def test_a_complete_output_keeps_its_name_over_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = synced(monkeypatch)
    for name in ("a.csv", "b.md"):
        outputs = Outputs([str(tmp_path / name)])
        await outputs.open(CRAWL, FETCHED_AT, Limits())
        paths.clear()
        await outputs.complete()
        assert paths[-1] == str(tmp_path)


async def test_the_folder_of_a_crawls_bodies_outlives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = synced(monkeypatch)
    root = tmp_path / "bodies"
    writer = FolderBodies(root, SystemClock()).writer(CRAWL)
    await writer.append(b"x")
    await writer.close()
    assert {str(root), str(root / f"crawl-{CRAWL}")} <= set(paths)


@pytest.mark.parametrize(
    ("words", "taken"),
    [([], "abcd"), (["2xx"], "a"), (["404", "200"], "ab"), (["error"], "cd"), (["5xx", "error"], "cd"), (["301"], "")],
)
def test_an_export_takes_the_pages_whose_status_is_named(words: list[str], taken: str) -> None:
    pages = {
        "a": page(status=200),
        "b": page(status=404),
        "c": page(error_code="dns"),
        "d": page(status=500, error_code="decoding"),
    }
    wanted = ExportFilter(words)
    assert "".join(name for name, one in pages.items() if wanted(one)) == taken


@pytest.mark.parametrize("word", ["2x", "ok", "2000", "", "xxx"])
def test_a_word_that_is_not_a_status_is_refused(word: str) -> None:
    with pytest.raises(InvalidInput, match="404, 4xx, or error"):
        ExportFilter([word])
