"""Compare texts by their word pairs: a 64-bit simhash finds candidates, because near-duplicate texts differ in few
bits, and a sketch estimates how much of two texts is the same (one-permutation MinHash with 8 bits of each minimum)."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from xxhash import xxh3_64_digest

MOST_WORDS: Final = 20_000
NEAR: Final = 3  # bits: the usual threshold for web pages with 64-bit simhash
BINS: Final = 128  # bytes of a sketch; texts up to about this number of words are compared almost exactly
_SIGN: Final = 1 << 63
_ENOUGH: Final = 4 * BINS
_BIN: Final = bytes(byte % BINS for byte in range(256))
_VALUE: Final = bytes(byte or 1 for byte in range(256))


def word_pairs(text: str) -> list[bytes]:
    """Return a 64-bit hash of each pair of neighbouring words."""
    # Only ASCII is lower-cased, so texts that differ in the case of other letters may get different fingerprints.
    words = text.encode(errors="replace").lower().split(maxsplit=MOST_WORDS)[:MOST_WORDS]
    return list(map(xxh3_64_digest, map(b" ".join, pairwise(words))))


def fingerprint(pairs: Sequence[bytes]) -> int | None:
    """Return the simhash of a text as a signed 64-bit integer, for SQL; None for fewer than two words."""
    return _majority(b"".join(pairs)) - _SIGN if pairs else None


def sketch(pairs: Sequence[bytes]) -> bytes:
    """Return a sample of the distinct word pairs: a byte of the smallest hash in each bin, 0 for an empty bin."""
    if len(pairs) > _ENOUGH:  # almost every bin has a small hash: skip large hashes
        pairs = list(filter(bytes([256 * _ENOUGH // len(pairs)]).__gt__, pairs))
    hashes = b"".join(sorted(pairs, reverse=True))
    found = bytearray(BINS)
    for place, value in zip(hashes[7::8].translate(_BIN), hashes[6::8].translate(_VALUE), strict=True):
        found[place] = value  # the smallest hash of a bin comes last and stays
    return bytes(found)


def _majority(digests: bytes) -> int:
    """Return the majority of each bit. One large integer per digest byte counts one bit of all digests at the same
    time."""
    count = len(digests) // 8
    ones = int.from_bytes(b"\x01" * count, "little")
    masks = [ones << bit for bit in range(8)]
    votes = 0
    for place in range(8):
        column = int.from_bytes(digests[place::8], "little")
        for bit, mask in enumerate(masks):
            if 2 * (column & mask).bit_count() > count:
                votes |= 1 << 8 * place + bit
    return votes
