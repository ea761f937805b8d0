"""Policies from files and to files: errors by line, all or nothing or only the valid lines; an exported file can be
imported."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from io import StringIO
from itertools import chain, count, repeat

import orjson
import pytest

from shoal.base.errors import InvalidInput
from shoal.base.ids import new_id
from shoal.plan import importer
from shoal.plan.importer import MAX_BAD, ImportSummary, PolicyImporter
from shoal.plan.policy_file import (
    LONGEST_LINE,
    PolicyFileRow,
    lines_of,
    read_csv,
    read_json_lines,
    write_csv,
    write_json_lines,
)
from tests.contract.conftest import Bench
from tests.contract.test_policies import PlanBench

HEAD = "url,frequency,priority_base,labels,rule_set"


async def take(bench: Bench, rows: Iterator[PolicyFileRow], *, skip_bad: bool = False) -> ImportSummary:
    plan = PlanBench(bench)
    importer = PolicyImporter(bench.database, plan.policies)
    return await importer.take(rows, skip_bad=skip_bad)


async def urls(bench: Bench) -> list[str | None]:
    _, found = await PlanBench(bench).policies.page_of(limit=100)
    return [policy.form.url for policy in found]


async def test_a_csv_file_is_taken_in(bench: Bench) -> None:
    lines = [
        HEAD,
        "http://example.org/a,6h,70,team=a;kind=price,",
        'http://example.org/b,1d,,,"{""fields"": {""t"": {""css"": ""h1""}}}"',
        "",
    ]
    report = await take(bench, read_csv(lines))
    assert (report.made, report.bad, report.problems) == (2, 0, [])
    _, [first, second] = await PlanBench(bench).policies.page_of()
    assert (first.form.priority_base, first.form.labels) == (70, {"team": "a", "kind": "price"})
    assert (second.form.priority_base, second.form.rule_set) == (50, {"fields": {"t": {"css": "h1"}}})


async def test_a_file_whose_first_answer_was_lost_is_kept_once(bench: Bench) -> None:
    first = new_id("pol")
    for _ in range(2):
        plan = PlanBench(bench)
        importer = PolicyImporter(bench.database, plan.policies)
        rows = read_csv([HEAD, "http://example.org/a,6h,,,", "http://example.org/b,6h,,,"])
        assert (await importer.take(rows, skip_bad=False, first=first)).made == 2
    assert await urls(bench) == ["http://example.org/a", "http://example.org/b"]


async def test_with_one_bad_line_nothing_is_kept_and_the_line_is_named(bench: Bench) -> None:
    lines = [HEAD, *[f"http://example.org/{number},6h,,," for number in range(500)], "http://10.0.0.1/,6h,,,"]
    report = await take(bench, read_csv(lines))
    assert (report.made, report.bad) == (0, 1)
    [(line, problem)] = report.problems
    assert line == 502
    assert "address" in problem
    assert await urls(bench) == []


async def test_bad_lines_can_be_skipped(bench: Bench) -> None:
    lines = [
        '{"url": "http://example.org/a", "frequency": "6h"}',
        "nonsense",
        '{"url": "http://example.org/b", "frequency": "0"}',
        '{"url": "http://example.org/c", "frequency": "6h", "attempts": 1}',
        '{"url": "http://example.org/d", "cron": "0 6 * * *"}',
    ]
    report = await take(bench, read_json_lines(lines), skip_bad=True)
    assert (report.made, report.bad) == (2, 3)
    assert [line for line, _ in report.problems] == [2, 3, 4]
    assert await urls(bench) == ["http://example.org/a", "http://example.org/d"]


@pytest.mark.parametrize("read", [read_csv, read_json_lines])
async def test_a_file_of_blank_lines_is_not_read_to_its_end(
    bench: Bench, read: Callable[[Iterable[str]], Iterator[PolicyFileRow]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "MAX_BLANK", 5_000)
    lines = chain(["url,frequency\n"] if read is read_csv else [], repeat(",\n" if read is read_csv else "\n"))
    async with asyncio.timeout(60):
        report = await take(bench, read(lines), skip_bad=True)
    assert (report.made, report.bad) == (0, MAX_BAD)
    assert "is blank, after 5,000 other blank lines" in report.problems[0][1]


async def test_an_import_that_nobody_waits_for_ends_between_two_batches(bench: Bench) -> None:
    rows = read_json_lines(repeat('{"url": "http://example.org/a", "frequency": "6h"}'))
    calls = count()

    def check_caller() -> None:
        if next(calls) == 3:
            raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        async with asyncio.timeout(60):
            await PolicyImporter(bench.database, PlanBench(bench).policies).take(
                rows, skip_bad=False, check_caller=check_caller
            )
    assert await urls(bench) == []


@pytest.mark.parametrize("read", [read_csv, read_json_lines])
async def test_a_line_without_end_is_one_bad_line_and_never_read_as_a_whole(
    bench: Bench, read: Callable[[Iterable[str]], Iterator[PolicyFileRow]]
) -> None:
    file = StringIO(newline="")
    good = {
        read_csv: ["url,frequency", "http://example.org/a,6h"],
        read_json_lines: ["{}", '{"url": "http://example.org/a", "frequency": "6h"}'],
    }[read]
    file.write("\n".join([good[0], "," * (3 * LONGEST_LINE), good[1], ""]))
    file.seek(0)
    lines = list(lines_of(file))
    assert [len(line) for line in lines] == [len(good[0]) + 1, LONGEST_LINE + 1, len(good[1]) + 1]
    report = await take(bench, read(lines), skip_bad=True)
    assert report.made == 1
    assert report.problems[-1] == (2, f"the line is longer than {LONGEST_LINE} characters; write one policy per line.")


async def test_exported_policies_can_be_imported(bench: Bench) -> None:
    plan = PlanBench(bench)
    await plan.make(url="http://example.org/a", labels={"team": "=1+1"})
    await plan.make(
        url="http://example.org/b", cron="0 6 * * 1-5", timezone="Europe/Berlin", windows=["Mon 01:00-09:00"]
    )
    _, before = await plan.policies.page_of()
    wanted = [orjson.loads(policy.spec) for policy in before]
    for text, read in ((write_csv(before, head=True), read_csv), (write_json_lines(before), read_json_lines)):
        rows = list(read(text.decode().splitlines()))
        assert [row.problem for row in rows] == ["", ""]
        assert [orjson.loads(row.form.text()) for row in rows if row.form] == wanted


async def test_a_policy_longer_than_a_cell_of_a_spreadsheet_comes_in_again_whole(bench: Bench) -> None:
    plan = PlanBench(bench)
    fields = {f"field{number}": {"css": f"p.c{number}"} for number in range(90)}
    made = await plan.make(rule_set={"fields": fields}, labels={f"label{n}": "x" * 600 for n in range(60)})
    [row] = list(read_csv(write_csv([made], head=True).decode().splitlines()))
    assert (row.problem, row.form) == ("", made.form)


@pytest.mark.parametrize("head", ["", "url,nonsense", "url,url"])
def test_a_first_line_that_names_no_columns_is_refused(head: str) -> None:
    with pytest.raises(InvalidInput, match="first line"):
        list(read_csv([head]))


def test_a_line_that_is_not_csv_is_reported_and_those_behind_it_are_read() -> None:
    lines = [HEAD, 'http://example.org/a,6h,"1"0,,', "http://example.org/b,6h,,,"]
    bad, good = list(read_csv([f"{line}\r\n" for line in lines]))
    assert (bad.line, bad.form) == (2, None)
    assert (good.line, good.problem) == (3, "")


def test_a_quote_that_is_not_closed_is_reported_with_the_lines_that_it_took() -> None:
    lines = [HEAD, 'http://example.org/a,6h,,"unclosed,', *["http://example.org/b,6h,,,"] * 3]
    [row] = list(read_csv([f"{line}\r\n" for line in lines]))
    assert row.line == 2
    assert "lines 2 to 5 were read as one" in row.problem


def test_a_line_that_is_too_long_is_refused_unread() -> None:
    good = '{"url": "http://example.org/", "frequency": "6h"}'
    long, short = list(read_json_lines([good * 30_000, good]))
    assert "is longer than 1000000 characters" in long.problem
    assert short.problem == ""


@pytest.mark.parametrize("read", [read_csv, read_json_lines])
def test_a_line_that_is_not_utf_8_is_refused(read: Callable[[list[str]], Iterator[PolicyFileRow]]) -> None:
    text = "url,frequency,labels\nhttp://example.org/,6h,name=caf\xe9\n"
    if read is read_json_lines:
        text = '{"url": "http://example.org/", "frequency": "6h", "labels": {"name": "caf\xe9"}}\n'
    [row] = list(read(text.encode("latin-1").decode("utf-8", "surrogateescape").splitlines(keepends=True)))
    assert "UTF-8" in row.problem


@pytest.mark.parametrize("skip_bad", [False, True])
async def test_a_file_with_a_thousand_invalid_lines_is_not_read_to_its_end(bench: Bench, skip_bad: bool) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "[]" if read > 1 else '{"url": "https://a.test/", "frequency": "1d"}'

    summary = await take(bench, read_json_lines(endless()), skip_bad=skip_bad)
    assert (summary.made, summary.bad, len(summary.problems)) == (0, 1_000, 101)
    assert summary.problems[-1] == (1_001, "is the 1,000th invalid line: the rest was not read")
    assert read < 1_200
