"""A 64-bit simhash over word pairs: near-duplicate texts differ in few bits."""

from itertools import pairwise
from typing import Final

from xxhash import xxh3_64_digest

MOST_WORDS: Final = 20_000
NEAR: Final = 3  # bits: the usual threshold for web pages with 64-bit simhash
_SIGN: Final = 1 << 63


def fingerprint(text: str) -> int | None:
    """Return the fingerprint of a text as a signed 64-bit integer, for SQL; None for fewer than two words."""
    # Lower-cases ASCII only, so texts that differ in the case of other letters may get different fingerprints.
    words = text.encode(errors="replace").lower().split(maxsplit=MOST_WORDS)[:MOST_WORDS]
    digests = b"".join(map(xxh3_64_digest, map(b" ".join, pairwise(words))))
    return _majority(digests) - _SIGN if digests else None


def _majority(digests: bytes) -> int:
    """Return the majority of each bit. One large integer per digest byte counts a bit of all digests at once."""
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
