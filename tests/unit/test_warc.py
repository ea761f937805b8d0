"""WARC records: what others read in them, what is left out of them, and what is read back."""

import gzip
import io
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator

from shoal.base.errors import NotFound
from shoal.egress import Failure, Headers, Limits, Request, Response
from shoal.extract.tree import Source
from shoal.pages import warc
from shoal.pages.bodies import BodyLocation, CapturedExchange, answer_in, source_in
from shoal.pages.warc import _original

AT = 1_790_000_000_123_456
URL = "http://a.example:8080/p/q?x=1"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n"
BODY = b"<h1>fish</h1>" * 50
PLACE = BodyLocation("f", 0, 1)


def response(raw: bytes = BODY, head: bytes | None = None, **facts: Any) -> Response:
    block = HEAD % len(raw) if head is None else head
    return Response(
        **{"url": URL, "status": 200, "address": "192.0.2.7", "seconds": 0.1} | facts, headers=Headers(block), raw=raw
    )


def members(answer: Response, *headers: tuple[str, str]) -> bytes:
    return warc.exchange_members(CapturedExchange(Request(URL, headers=headers), answer), AT)


def read_by_warcio(data: bytes) -> list[tuple[Any, bytes]]:
    return [(record, record.raw_stream.read()) for record in ArchiveIterator(io.BytesIO(data), check_digests="raise")]


def test_another_reader_finds_the_answer_and_its_request() -> None:
    data = warc.info_member("a.warc.gz", AT, [("software", "Shoal/0")]) + members(response(), ("User-Agent", "Shoal/0"))
    [info, answer, request] = read_by_warcio(data)
    assert info[0].rec_type == "warcinfo"
    assert b"software: Shoal/0\r\n" in info[1]
    assert answer[0].rec_type == "response"
    fields = answer[0].rec_headers
    assert fields["WARC-Target-URI"] == URL
    assert fields["WARC-Date"] == "2026-09-21T14:13:20.123456Z"
    assert fields["WARC-IP-Address"] == "192.0.2.7"
    assert answer[0].http_headers.get_statuscode() == "200"
    assert answer[1] == BODY
    assert request[0].rec_type == "request"
    assert request[0].rec_headers["WARC-Concurrent-To"] == fields["WARC-Record-ID"]
    assert request[0].http_headers.protocol == "GET"
    assert request[0].http_headers["Host"] == "a.example:8080"
    assert request[0].http_headers["User-Agent"] == "Shoal/0"


def test_an_address_that_only_a_proxy_knows_is_left_out() -> None:
    [(answer, _), _] = read_by_warcio(members(response(address="")))
    assert answer.rec_headers["WARC-IP-Address"] is None


def test_each_record_is_a_gzip_member_of_its_own_and_says_how_long_it_is() -> None:
    data = members(response())
    first, second = warc.pieces(data)
    assert first.offset == 0
    assert second.offset == first.length
    for piece in (first, second):
        member = data[piece.offset : piece.offset + piece.length]
        unpacker = zlib.decompressobj(31)
        plain = unpacker.decompress(member)
        assert unpacker.eof
        assert not unpacker.unused_data
        assert int.from_bytes(member[20:24], "little") == len(plain)
    assert gzip.decompress(data).count(b"WARC/1.1\r\n") == 2


def test_credentials_are_left_out_of_the_request() -> None:
    data = members(
        response(),
        ("Authorization", "Basic c2VjcmV0"),
        ("Cookie", "session=secret"),
        ("X-Api-Key", "secret"),
        ("Accept-Secret", "secret"),
        ("Accept", "*/*"),
    )
    plain = gzip.decompress(data)
    assert b"Accept: */*" in plain
    assert b"secret" not in plain
    assert b"c2VjcmV0" not in plain


def test_an_answer_over_http_2_is_written_as_readers_expect_it_and_says_what_it_was() -> None:
    [(record, body), _] = read_by_warcio(members(response(head=b"HTTP/2 200 \r\ncontent-type: text/html\r\n\r\n")))
    assert record.http_headers.protocol == "HTTP/1.1"
    assert record.rec_headers["WARC-Protocol"] == "h2"
    assert body == BODY


def test_the_transfer_encoding_of_a_decoded_body_is_renamed() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n"
    [(record, body), _] = read_by_warcio(members(response(head=head)))
    assert record.http_headers["X-Crawler-Transfer-Encoding"] == "chunked"
    assert record.http_headers.get_header("Transfer-Encoding") is None
    assert body == BODY


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\nX: y\n\n", b"HTTP/1.1 200 OK\r\nX: y\n\r\n", b"HTTP/1.0 200\r\nX: y"]
)
def test_sloppy_line_ends_do_not_hide_where_the_body_begins(head: bytes) -> None:
    read = answer_in(members(response(head=head)), BodyLocation("f", 0, 1))
    assert (read.status, read.headers.get("x"), read.raw) == (200, "y", BODY)


def test_an_encoded_body_stays_as_it_was_sent() -> None:
    raw = gzip.compress(BODY)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(raw)
    read = answer_in(members(response(raw, head)), BodyLocation("f", 0, 1))
    assert read.raw == raw
    assert read.body() == BODY


def test_a_redirect_whose_body_was_cut_says_so() -> None:
    head = b"HTTP/1.1 301 Moved\r\nLocation: /b\r\nContent-Length: 100000\r\n\r\n"
    assert b"WARC-Truncated: length\r\n" in gzip.decompress(members(response(b"short", head, status=301)))
    assert b"WARC-Truncated" not in gzip.decompress(members(response()))


def test_a_304_is_a_revisit() -> None:
    unchanged = response(b"", b"HTTP/1.1 304 Not Modified\r\n\r\n", status=304)
    [(record, _), _] = read_by_warcio(members(unchanged, ("If-None-Match", '"1"')))
    assert record.rec_type == "revisit"
    assert record.rec_headers["WARC-Profile"].endswith("server-not-modified")


def test_a_304_that_nobody_asked_for_is_a_response() -> None:
    [(record, _), _] = read_by_warcio(members(response(b"", b"HTTP/1.1 304 Not Modified\r\n\r\n", status=304)))
    assert record.rec_type == "response"


def test_the_head_of_a_record_is_read_without_its_body() -> None:
    data = members(response(b"x" * 5_000_000))
    piece = next(iter(warc.pieces(data)))
    head, body = warc.read_head(data[: piece.length]).http()
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert len(body) < 10_000


@pytest.mark.parametrize("damage", ["nothing", "no gzip", "no member of ours", "cut", "another length", "no record"])
def test_damaged_content_is_reported(damage: str) -> None:
    whole = members(response())
    kept = {
        "nothing": b"",
        "no gzip": b"x" * 100,
        "no member of ours": gzip.compress(b"x"),
        "cut": whole[:100],
        "another length": whole[:16] + b"\x50\x00\x00\x00" + whole[20:],
        "no record": whole[: whole.index(b"sl")] + b"sl" + whole[14:30] + b"\x00" * (len(whole) - 30),
    }[damage]
    with pytest.raises(NotFound, match="is damaged"):
        answer_in(kept, BodyLocation("f", 0, 1))


@pytest.mark.parametrize("field", [b"Content-Length", b"WARC-Target-URI", b"WARC-Date", b"WARC-Payload-Digest"])
def test_a_record_that_lost_a_field_is_damaged(field: bytes) -> None:
    whole = members(response())
    length = next(warc.pieces(whole)).length
    plain = gzip.decompress(whole[:length]).replace(field, b"X" * len(field), 1)
    packed = zlib.compress(plain, wbits=-zlib.MAX_WBITS) + struct.pack("<LL", zlib.crc32(plain), len(plain))
    kept = whole[:16] + struct.pack("<LL", 24 + len(packed), len(plain)) + packed + whole[length:]
    with pytest.raises(NotFound, match=f"it has no {field.decode().lower()}"):
        answer_in(kept, BodyLocation("f", 0, 1))
    assert _original(kept) == (b"", None)


@given(st.binary(max_size=3000), st.text(st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=50))
def test_every_body_and_field_is_read_back(raw: bytes, value: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nX-Odd: " + value.encode("latin-1") + b"\r\n\r\n"
    read = answer_in(members(response(raw, head)), BodyLocation("f", 0, 1))
    assert read.raw == raw
    assert read.headers.block == head
    assert read.url == URL
    assert read.address == "192.0.2.7"


def test_a_rendered_document_is_a_record_of_its_own_that_refers_to_the_response() -> None:
    html = b"<!DOCTYPE html><html><body>made by a script: \xc3\xa9</body></html>"
    exchange = CapturedExchange(Request(URL), response(), html)
    kept = warc.exchange_members(exchange, AT) + members(response(b"moved", status=301))
    [answer, request, (rendered, block), *earlier] = read_by_warcio(kept)
    assert [answer[0].rec_type, request[0].rec_type, rendered.rec_type] == ["response", "request", "conversion"]
    assert answer[1] == BODY
    assert block == html
    assert rendered.rec_headers["WARC-Refers-To"] == answer[0].rec_headers["WARC-Record-ID"]
    assert rendered.rec_headers["WARC-Target-URI"] == f"urn:rendered:{URL}"
    assert rendered.rec_headers["Content-Type"] == "text/html; charset=utf-8"
    assert len(earlier) == 2
    assert answer_in(kept, PLACE).raw == BODY
    source = source_in(kept, PLACE, Limits())
    assert isinstance(source, Source)
    assert (source.body, source.is_rendered, source.status) == (html, True, 200)
    assert source.text.endswith("é</body></html>")
    assert [record.rec_type for record, _ in read_by_warcio(warc.first_exchange(kept))][2:] == ["conversion"]
    assert exchange.size == len(BODY) + len(html)


def test_a_page_that_was_not_rendered_is_read_as_it_was_sent() -> None:
    raw = gzip.compress(BODY)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=latin-1\r\nContent-Encoding: gzip\r\n\r\n"
    source = source_in(members(response(raw, head)) + members(response(b"moved", status=301)), PLACE, Limits())
    assert isinstance(source, Source)
    assert (source.body, source.content_type, source.is_rendered) == (BODY, "text/html; charset=latin-1", False)
    assert isinstance(source_in(members(response(b"no gzip", head)), PLACE, Limits()), Failure)


def test_a_damaged_rendered_document_is_reported() -> None:
    kept = warc.exchange_members(CapturedExchange(Request(URL), response(), b"<html>" * 999), AT)
    *_, last = warc.pieces(kept)
    broken = kept[: last.offset + 60] + b"\x00" * 20 + kept[last.offset + 80 :]
    with pytest.raises(NotFound, match="is damaged"):
        source_in(broken, PLACE, Limits())
