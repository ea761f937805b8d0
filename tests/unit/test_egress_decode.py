"""Content encodings: read in steps, within limits, never with an exception (B27, B28)."""

import gzip
import random
import tracemalloc
import zlib
from functools import partial

import brotli
import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.egress.decode import DecodingFault, accept_encoding, decode
from tests.support.effort import times

TEXT = b"<p>to be read</p>" * 1000
MEGABYTE = 1 << 20


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


ENCODERS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstd.compress,
}


def undo(raw: bytes, encodings: str, limit: int = 30 * MEGABYTE) -> bytes | DecodingFault:
    return decode(raw, encodings, limit=limit, max_encodings=3)


def code_of(outcome: bytes | DecodingFault) -> str:
    assert isinstance(outcome, DecodingFault)
    return outcome.code


@pytest.mark.parametrize("name", ENCODERS)
def test_each_encoding_is_read(name: str) -> None:
    assert undo(ENCODERS[name](TEXT), name) == TEXT
    assert undo(ENCODERS[name](b""), name.upper()) == b""


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("size", [262_144, 491_456, 1_000_000, 5_000_000])
def test_a_large_body_is_read_to_its_end(name: str, size: int) -> None:
    # Zeros, which decoders return in few large chunks, and noise, which they return in many small ones.
    for body in (bytes(size), random.Random(size).randbytes(size)):
        encoded = brotli.compress(body, quality=1) if name == "br" else ENCODERS[name](body)
        assert undo(encoded, name) == body


def test_deflate_without_its_wrapper_is_read() -> None:
    assert undo(raw_deflate(TEXT), "deflate") == TEXT


def test_encodings_are_undone_in_the_reverse_order() -> None:
    assert undo(brotli.compress(gzip.compress(TEXT)), "gzip, br") == TEXT


def test_all_members_are_read_and_what_follows_them_is_not() -> None:
    assert undo(gzip.compress(b"one ") + gzip.compress(b"two") + b"\0\0\0", "gzip") == b"one two"
    assert undo(zstd.compress(b"one ") + zstd.compress(b"two"), "zstd") == b"one two"


def test_an_unknown_name_leaves_the_body_as_it_is() -> None:
    assert undo(TEXT, "utf-8") == TEXT
    assert undo(TEXT, "identity") == TEXT
    assert undo(TEXT, "") == TEXT


def test_an_encoding_that_cannot_be_read_here_is_a_fault() -> None:
    assert code_of(undo(TEXT, "compress")) == "bad_encoding"


@pytest.mark.parametrize("name", ENCODERS)
def test_an_empty_body_is_empty_whatever_its_encoding(name: str) -> None:
    assert undo(b"", name) == b""


@pytest.mark.parametrize("name", ENCODERS)
def test_a_body_that_ends_in_the_middle_is_a_fault(name: str) -> None:
    assert code_of(undo(ENCODERS[name](TEXT)[:-5], name)) == "bad_encoding"


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
def test_a_body_that_is_something_else_is_a_fault(name: str) -> None:
    assert code_of(undo(b"<html>plain</html>" * 9, name)) == "bad_encoding"


def test_more_encodings_than_the_limit_are_a_fault() -> None:
    assert code_of(undo(TEXT, ", ".join(["gzip"] * 100))) == "too_many_encodings"
    assert code_of(undo(TEXT, "gzip, gzip, gzip, gzip")) == "too_many_encodings"


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
def test_a_body_of_exactly_the_limit_is_read_and_one_byte_more_is_not(name: str) -> None:
    encoded = ENCODERS[name](TEXT)
    assert undo(encoded, name, limit=len(TEXT)) == TEXT
    assert code_of(undo(encoded, name, limit=len(TEXT) - 1)) == "decompressed_too_large"


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
def test_a_bomb_costs_no_more_memory_than_the_limit(name: str) -> None:
    encoder = {**ENCODERS, "br": partial(brotli.compress, quality=1)}[name]
    bomb = encoder(bytes(100 * MEGABYTE))
    tracemalloc.start()
    try:
        outcome = undo(bomb, name, limit=2 * MEGABYTE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert code_of(outcome) == "decompressed_too_large"
    assert peak < 10 * MEGABYTE


def test_a_bomb_inside_a_bomb_stops_at_the_first_layer_over_the_limit() -> None:
    bomb = gzip.compress(gzip.compress(bytes(100 * MEGABYTE)))
    assert code_of(undo(bomb, "gzip, gzip", limit=MEGABYTE)) == "decompressed_too_large"


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_members_without_end_are_a_fault(name: str) -> None:
    empty = ENCODERS[name](b"")
    assert undo(empty * 1_000, name) == b""
    assert code_of(undo(empty * 100_000, name)) == "bad_encoding"


def test_members_share_one_limit() -> None:
    many = gzip.compress(bytes(1000)) * 100
    assert code_of(undo(many, "gzip", limit=50_000)) == "decompressed_too_large"


@given(st.binary(max_size=2000), st.sampled_from(["gzip", "deflate", "br", "zstd", "gzip, br", "zstd,,x"]))
def test_foreign_bytes_never_raise(raw: bytes, encodings: str) -> None:
    outcome = undo(raw, encodings, limit=100_000)
    assert isinstance(outcome, bytes | DecodingFault)


@given(st.binary(max_size=5000), st.lists(st.sampled_from(["gzip", "deflate", "br", "zstd"]), max_size=3))
def test_an_encoded_body_is_decoded_to_the_original(body: bytes, names: list[str]) -> None:
    encoded = body
    for name in names:
        encoded = ENCODERS[name](encoded)
    assert undo(encoded, ", ".join(names)) == body


def test_servers_are_told_what_can_be_read() -> None:
    assert accept_encoding() == "gzip, deflate, br, zstd"


@settings(max_examples=times(100), deadline=None)
@given(
    st.sampled_from(sorted(ENCODERS)),
    st.binary(max_size=300).map(lambda body: body * 50),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4),
    st.integers(0, 10_000),
)
def test_a_stream_with_damage_is_read_or_refused_but_never_raises(
    name: str, body: bytes, damage: list[tuple[int, int]], length: int
) -> None:
    encoded = bytearray(ENCODERS[name](body))
    for at, value in damage:
        encoded[at % len(encoded)] = value
    outcome = undo(bytes(encoded[: length or None]), name, limit=5_000)
    assert isinstance(outcome, DecodingFault) or len(outcome) <= 5_000 or outcome == bytes(encoded)
