"""Tables: fields of the rule set as columns, chosen fields, one row per item, and files that are not replaced."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.base.errors import InvalidInput
from shoal.egress import Limits
from shoal.extract.rules import read_rules, rules_of
from shoal.pages.export.formats import CLIPPED
from shoal.pages.export.output import Outputs, may_replace
from shoal.pages.export.table import LINK_COLUMNS, PAGE_COLUMNS, PageTable, read_fields
from shoal.pages.page import RECORD_FIELDS, Page

RULES: dict[str, Any] = {
    "fields": {
        "name": {"css": "h1"},
        "price": {"css": ".price", "type": "float"},
        "stock": {"css": ".stock", "type": "int", "default": 0},
        "tags": {"css": ".tag", "list": True},
        "odd": {"css": ".odd", "type": "int", "default": "none"},
        "reviews": {"css": "li", "list": True, "each": {"author": {"css": "b"}, "stars": {"css": "i", "type": "int"}}},
    }
}
DATA = {
    "name": "Tea",
    "price": 2.5,
    "stock": 3,
    "tags": ["green", "hot"],
    "odd": "none",
    "reviews": [{"author": "Ann", "stars": 5}, {"author": "=1+1", "stars": None}],
}


def page(number: int = 1, data: dict[str, Any] | None = None, **facts: Any) -> Page:
    return Page(url=f"http://a.example/{number}", depth=0, fetched_at=number, attempt=1, data=data, **facts)


async def written(path: Path, table: PageTable, *pages: Page) -> Path:
    outputs = Outputs([str(path)])
    outputs.fit(table)
    await outputs.open("crl_1", 0, Limits())
    for one in pages:
        await outputs.write([one])
    await outputs.complete()
    return path


def csv_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(), newline=""), strict=True))


async def test_fields_of_the_rule_set_are_columns(tmp_path: Path) -> None:
    table = PageTable(rules=RULES)
    rows = csv_rows(await written(tmp_path / "a.csv", table, page(1, DATA), page(2)))
    names = [f"data.{name}" for name in RULES["fields"]]
    assert list(rows[0]) == [*RECORD_FIELDS, *names]
    assert [rows[0][name] for name in names[:5]] == ["Tea", "2.5", "3", '["green","hot"]', "none"]
    assert [rows[1][name] for name in names] == [""] * 6
    assert json.loads(rows[0]["data"]) == DATA
    found = pq.read_table(await written(tmp_path / "a.parquet", table, page(1, DATA), page(2)))
    assert found.schema.field("data.price").type == pa.float64()
    assert found.schema.field("data.stock").type == pa.int64()
    assert found.schema.field("data.tags").type == pa.list_(pa.string())
    assert found.schema.field("data.odd").type == pa.string()
    [first, second] = found.to_pylist()
    assert [first[name] for name in names[:4]] == ["Tea", 2.5, 3, ["green", "hot"]]
    assert json.loads(first["data.reviews"]) == DATA["reviews"]
    assert [second[name] for name in names] == [None] * 6


@pytest.mark.parametrize("ending", ["csv", "jsonl", "json", "parquet"])
async def test_only_the_chosen_fields_are_written_in_their_order(tmp_path: Path, ending: str) -> None:
    fields = read_fields("data.price, url,error.code")
    path = await written(tmp_path / f"a.{ending}", PageTable(fields, rules=RULES), page(1, DATA, error_code="timeout"))
    expected = {"data.price": 2.5, "url": "http://a.example/1", "error.code": "timeout"}
    match ending:
        case "csv":
            rows: Any = [row | {"data.price": float(row["data.price"])} for row in csv_rows(path)]
        case "jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
        case "json":
            rows = json.loads(path.read_text())
        case _:
            rows = pq.read_table(path).to_pylist()
    assert rows == [expected]
    assert list(rows[0]) == list(expected)


async def test_a_list_becomes_one_row_per_item_and_none_for_a_page_without_items(tmp_path: Path) -> None:
    pages = [page(1, DATA), page(2, DATA | {"reviews": []}), page(3), page(4, DATA | {"tags": ["one"]})]
    table = PageTable(read_fields("url,data.reviews.author,data.reviews.stars"), "data.reviews", rules=RULES)
    rows = csv_rows(await written(tmp_path / "a.csv", table, *pages))
    assert [tuple(row.values()) for row in rows] == [
        ("http://a.example/1", "Ann", "5"),
        ("http://a.example/1", "'=1+1", ""),
        ("http://a.example/4", "Ann", "5"),
        ("http://a.example/4", "'=1+1", ""),
    ]
    found = pq.read_table(await written(tmp_path / "a.parquet", PageTable(None, "tags", rules=RULES), *pages))
    assert found.schema.field("data.tags").type == pa.string()
    assert found["data.tags"].to_pylist() == ["green", "hot", "green", "hot", "one"]
    lines = (await written(tmp_path / "a.jsonl", PageTable(None, "reviews", rules=RULES), *pages)).read_text()
    assert [json.loads(line)["data"]["reviews"]["author"] for line in lines.splitlines()] == ["Ann", "=1+1"] * 2


async def test_a_json_file_is_one_array_also_without_rows(tmp_path: Path) -> None:
    assert json.loads((await written(tmp_path / "a.json", PageTable())).read_text()) == []
    found = json.loads((await written(tmp_path / "b.json", PageTable(), page(1), page(2))).read_text())
    assert [list(one) for one in found] == [list(RECORD_FIELDS)] * 2


async def test_ten_megabytes_of_text_are_written_whole_or_clipped_and_say_so(tmp_path: Path) -> None:
    long = {"name": "x" * 10_000_000}
    rules = {"fields": {"name": {"css": "h1"}}}
    table = PageTable(["data.name"], rules=rules)
    assert pq.read_table(await written(tmp_path / "a.parquet", table, page(1, long)))["data.name"].to_pylist() == [
        long["name"]
    ]
    [row] = csv_rows(await written(tmp_path / "a.csv", table, page(1, long)))
    assert row["data.name"].endswith(CLIPPED)


@pytest.mark.parametrize(
    ("fields", "explode", "problem"),
    [
        ("", None, "names nothing"),
        ("url,,title", None, "names nothing"),
        ("url,url", None, "twice"),
        ("titel", None, r"did you mean title\?$"),
        ("data.prise", None, "did you mean data.price"),
        ("data.reviews.author", None, "add --explode reviews"),
        (None, "price", "which has one value"),
        (None, "nothing", "is not a field"),
        ("x" * 10_000, None, "is not a field"),
    ],
)
def test_a_field_that_no_page_has_is_refused(fields: str | None, explode: str | None, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        PageTable(read_fields(fields), explode, rules=RULES)


def test_without_a_rule_set_there_is_no_data_to_choose() -> None:
    for chosen in ({"fields": ["data.price"]}, {"explode": "reviews"}):
        with pytest.raises(InvalidInput, match="no rule set extracts data"):
            PageTable(**chosen)  # type: ignore[arg-type]
    assert PageTable(["data.price"], is_open=True).columns == {"data.price": "json"}  # a hook may add it


def test_columns_that_collide_are_refused(tmp_path: Path) -> None:
    rules = {"fields": {"price": {"css": "a"}, "Price": {"css": "b"}}}
    outputs = Outputs([str(tmp_path / "a.csv")])
    with pytest.raises(InvalidInput, match=r"data\.price and data\.Price, which differ only in case"):
        outputs.fit(PageTable(rules=rules))
    outputs.fit(PageTable(["url", "data.Price"], rules=rules))
    Outputs([str(tmp_path / "a.jsonl")]).fit(PageTable(rules=rules))
    with pytest.raises(InvalidInput, match="'price' occurs twice"):
        rules_of(b'{"fields": {"price": {"css": "a"}, "price": {"css": "b"}}}', "r.json")


def test_a_field_with_each_may_say_that_it_is_a_list() -> None:
    assert read_rules(RULES).fields["reviews"].list
    with pytest.raises(InvalidInput, match="cannot be false with each"):
        read_rules({"fields": {"a": {"css": "p", "list": False, "each": {"b": {"css": "i"}}}}})


@pytest.mark.parametrize("ending", ["csv", "jsonl", "json", "parquet"])
async def test_an_output_is_replaced_and_another_file_is_not(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    for table in (PageTable(), PageTable(rules=RULES), PageTable(["url", "title"])):
        await written(path, table, page(1, DATA))
        outputs = Outputs([str(path)])
        outputs.fit(table)
        outputs.check()
    assert may_replace(str(path), PAGE_COLUMNS)
    await written(path, PageTable(["url"]), page())
    assert may_replace(str(path), ["url"])
    assert not may_replace(str(path), PAGE_COLUMNS)  # it may be anybody's list
    await written(path, PageTable(), page(1, {"name": "x" * 500_000}))
    assert may_replace(str(path), LINK_COLUMNS)
    for content in (b"my notes\n", b'{"name": 1}\n', b'"name","url"\r\n', b"[1]", b"\xff\xfe", b"{", b'["url"]\n'):
        path.write_bytes(content)
        outputs = Outputs([str(path)])
        with pytest.raises(InvalidInput, match="does not look like an output of Shoal's"):
            outputs.check()
        assert path.read_bytes() == content
        outputs.check(lambda name, what: True)
    path.write_bytes(b"")
    Outputs([str(path)]).check()


async def test_somebody_at_a_terminal_is_asked_about_every_file(tmp_path: Path) -> None:
    path = await written(tmp_path / "a.csv", PageTable(), page())
    asked: list[tuple[str, str]] = []

    def refuse(name: str, what: str) -> bool:
        asked.append((name, what))
        return False

    with pytest.raises(InvalidInput, match="choose another name"):
        Outputs([str(path), str(tmp_path / "new.csv")]).check(refuse)
    assert asked == [(str(path), "exists")]
