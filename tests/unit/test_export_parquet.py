"""Parquet: the same record as everywhere, with the types that its readers expect."""

import io
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.pages.export import parquet
from shoal.pages.export.parquet import Parquet
from shoal.pages.page import RECORD_FIELDS, Page

CRAWL = "crl_1"


def page(**facts: Any) -> Page:
    return Page(**{"url": "http://a.example/", "depth": 0, "fetched_at": 1_790_000_000_123_456, "attempt": 1} | facts)


def full_page() -> Page:
    return page(
        status=200,
        title="Fish",
        word_count=7,
        redirects=[{"url": "http://a.example/", "status": 301}],
        duration_ms=1.5,
        error_code="body_too_large",
        error_message="It was large.",
        data={"price": 3},
    )


def written(*batches: list[Page]) -> bytes:
    made = Parquet()
    pieces = [made.head()]
    for batch in batches:
        pieces += made.rows(one.record(CRAWL) for one in batch)
    return b"".join([*pieces, *made.tail()])


def read(data: bytes) -> Any:
    return pq.read_table(io.BytesIO(data))


def test_every_field_of_the_record_is_a_column_in_its_order() -> None:
    table = read(written([full_page()]))
    assert tuple(table.column_names) == RECORD_FIELDS


def test_values_have_their_types() -> None:
    table = read(written([full_page(), page()]))
    assert table.schema.field("fetched_at").type == pa.timestamp("us", tz="UTC")
    assert pa.types.is_integer(table.schema.field("status").type)
    first, second = table.to_pylist()
    assert first["fetched_at"] == datetime(2026, 9, 21, 14, 13, 20, 123456, tzinfo=UTC)
    assert first["redirects"] == [{"url": "http://a.example/", "status": 301}]
    assert first["error"] == {"code": "body_too_large", "message": "It was large."}
    assert first["data"] == '{"price":3}'
    assert first["crawl_id"] == CRAWL
    assert second["error"] is None
    assert second["data"] is None
    assert second["redirects"] == []


def test_a_crawl_without_pages_is_a_table_without_rows() -> None:
    assert read(written()).num_rows == 0


def test_rows_are_written_group_by_group_and_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 100)
    batches = [[page(url=f"http://a.example/{first + number}") for number in range(60)] for first in (0, 60, 120, 180)]
    data = written(*batches)
    assert pq.ParquetFile(io.BytesIO(data)).num_row_groups == 2
    assert read(data).column("url").to_pylist() == [f"http://a.example/{number}" for number in range(240)]


def test_rows_are_written_as_soon_as_their_group_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 10)
    made = Parquet()
    made.head()
    assert b"".join(made.rows([page().record(CRAWL)] * 9)) == b""
    assert b"".join(made.rows([page().record(CRAWL)])) != b""


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    [row] = read(written([page(title="a\ud800b")])).to_pylist()
    assert row["title"] == "a?b"


def test_beginning_anew_forgets_what_was_there() -> None:
    made = Parquet()
    made.head()
    list(made.rows([page().record(CRAWL)]))
    data = b"".join([made.head(), *made.rows([page(url="http://b.example/").record(CRAWL)]), *made.tail()])
    assert read(data).column("url").to_pylist() == ["http://b.example/"]
