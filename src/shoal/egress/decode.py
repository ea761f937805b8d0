"""Decodes content encodings in steps and within limits, so that a decompression bomb takes no more memory than the
limit. Pure.

Brotli and Zstandard are offered to servers only where their libraries are installed.
"""

import importlib
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec import Struct

from shoal.base.parsing import show_size

_STEP: Final = 1 << 18
_ZLIB_STEP: Final = 1 << 22  # each step copies the remaining input
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
_MOST_MEMBERS: Final = 1_000  # each member copies the remaining input: millions of empty members would take minutes


class DecodingFault(Struct, frozen=True):
    """Why a body cannot be decoded."""

    code: str
    message: str


class _TooLarge(Exception):
    pass


class _Broken(Exception):
    pass


def decode(raw: bytes, encodings: str, *, limit: int, max_encodings: int) -> bytes | DecodingFault:
    """Decode `raw` from the encodings that a Content-Encoding header lists, the last one first."""
    names = [name for part in encodings.split(",") if (name := part.strip().lower())]
    if len(names) > max_encodings:
        return DecodingFault(
            "too_many_encodings", f"The body is encoded {len(names)} times; the limit is {max_encodings}."
        )
    try:
        for name in reversed(names):
            raw = _undo(name, raw, limit)
    except _TooLarge:
        return DecodingFault(
            "decompressed_too_large",
            f"Decompressed, the body is larger than the limit of {show_size(limit)}, "
            "which for pages is SHOAL_MAX_DECODED.",
        )
    except _Broken as fault:
        return DecodingFault("bad_encoding", f"The body does not match its Content-Encoding: {fault}.")
    return raw


def accept_encoding() -> str:
    """Return the Accept-Encoding header to send."""
    return ", ".join(name for name in ("gzip", "deflate", "br", "zstd") if name in DECODERS)


def _undo(name: str, raw: bytes, limit: int) -> bytes:
    decoder = DECODERS.get(name)
    if decoder is not None and raw:
        return decoder(raw, limit)
    if decoder is None and name in _UNREADABLE:
        raise _Broken(f"{name} is not supported")
    # Servers put charsets and other wrong values into this header. Like browsers, use such a body unchanged.
    return raw


def _gunzip(raw: bytes, limit: int) -> bytes:
    return _members(partial(_inflate, window=_GZIP_OR_ZLIB), raw, limit, magic=b"\x1f\x8b")


def _members(one: Callable[[bytes, int], tuple[bytes, bytes]], raw: bytes, limit: int, *, magic: bytes) -> bytes:
    """Decode all members in order. Like other decoders, ignore data after the last member."""
    parts: list[bytes] = []
    left = limit
    for _ in range(_MOST_MEMBERS):
        part, raw = one(raw, left)
        parts.append(part)
        left -= len(part)
        if not raw.startswith(magic):
            return b"".join(parts)
    raise _Broken(f"it has more than {_MOST_MEMBERS} members")


def _undeflate(raw: bytes, limit: int) -> bytes:
    """Decode the encoding `deflate`. RFC 9110 defines it as the zlib format, but many servers send a raw deflate
    stream."""
    try:
        return _inflate(raw, limit, _GZIP_OR_ZLIB)[0]
    except _Broken:
        return _inflate(raw, limit, -zlib.MAX_WBITS)[0]


def _inflate(raw: bytes, limit: int, window: int) -> tuple[bytes, bytes]:
    """Inflate in steps, so that a body that is too large never takes more memory than the limit."""
    stream = zlib.decompressobj(window)
    parts: list[bytes] = []
    try:
        while not stream.eof:
            part = stream.decompress(stream.unconsumed_tail if parts else raw, _ZLIB_STEP)
            parts.append(part)
            limit -= len(part)
            if limit < 0:
                raise _TooLarge
            if not part and not stream.eof:
                raise _Broken("it is truncated")
    except zlib.error as error:
        raise _Broken(str(error)) from None
    return parts[0] if len(parts) == 1 else b"".join(parts), stream.unused_data


def _brotli_decoder(brotli: Any) -> Callable[[bytes, int], bytes]:
    def unbrotli(raw: bytes, limit: int) -> bytes:
        stream = brotli.Decompressor()

        def step(data: bytes) -> bytes:
            return bytes(stream.process(data, output_buffer_limit=_STEP))

        try:
            return _collect(step, raw, limit, finished=stream.is_finished, hungry=stream.can_accept_more_data)
        except brotli.error as error:
            raise _Broken(str(error)) from None

    return unbrotli


def _zstd_decoder(zstd: Any) -> Callable[[bytes, int], bytes]:
    # The sender chooses the size of the window, which costs memory here; RFC 9659 allows 8 MB over HTTP.
    options = {zstd.DecompressionParameter.window_log_max: 23}

    def frame(raw: bytes, limit: int) -> tuple[bytes, bytes]:
        stream = zstd.ZstdDecompressor(options=options)

        def step(data: bytes) -> bytes:
            return bytes(stream.decompress(data, max_length=_STEP))

        try:
            plain = _collect(step, raw, limit, finished=lambda: stream.eof, hungry=lambda: stream.needs_input)
        except zstd.ZstdError as error:
            raise _Broken(str(error)) from None
        return plain, stream.unused_data

    return lambda raw, limit: _members(frame, raw, limit, magic=b"\x28\xb5\x2f\xfd")


def _collect(
    step: Callable[[bytes], bytes],
    raw: bytes,
    limit: int,
    *,
    finished: Callable[[], bool],
    hungry: Callable[[], bool],
) -> bytes:
    parts = [step(raw)]
    size = len(parts[0])
    while size <= limit and not finished():
        part = step(b"")
        if not part and hungry():  # check both: a decoder that accepts more input may still have output
            raise _Broken("it is truncated")
        parts.append(part)
        size += len(part)
    if size > limit:
        raise _TooLarge
    return b"".join(parts)


def _library(*names: str) -> Any:
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _decoders() -> dict[str, Callable[[bytes, int], bytes]]:
    known: dict[str, Callable[[bytes, int], bytes]] = {
        "gzip": _gunzip,
        "x-gzip": _gunzip,
        "deflate": _undeflate,
    }
    brotli = _library("brotli")
    # Versions before 1.2 cannot limit the size of the output.
    if brotli is not None and hasattr(brotli.Decompressor, "can_accept_more_data"):
        known["br"] = _brotli_decoder(brotli)
    zstd = _library("compression.zstd", "backports.zstd")
    if zstd is not None:
        known["zstd"] = _zstd_decoder(zstd)
    return known


DECODERS: Final = _decoders()
_UNREADABLE: Final = frozenset({"br", "zstd", "compress", "x-compress", "dcb", "dcz"})
