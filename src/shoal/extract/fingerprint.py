"""A fingerprint of 64 bits: texts that are nearly the same differ in few bits of it (simhash over pairs of words)."""

from itertools import pairwise
from typing import Final

from xxhash import xxh3_64_digest

MOST_WORDS: Final = 20_000
NEAR: Final = 3  # bits: what the literature uses for pages of the web at 64 bits
_SIGN: Final = 1 << 63


def fingerprint(text: str) -> int | None:
    """The fingerprint of a text, as a signed number that SQL can hold; None for a text of fewer than two words."""
    # Lowered as bytes, so only in ASCII: a page that differs in nothing but the case of other letters may differ.
    words = text.encode(errors="replace").lower().split(maxsplit=MOST_WORDS)[:MOST_WORDS]
    digests = b"".join(map(xxh3_64_digest, map(b" ".join, pairwise(words))))
    return _majority(digests) - _SIGN if digests else None


def _majority(digests: bytes) -> int:
    """Each bit is what most digests have there. One large number per byte of a digest counts all of them at once."""
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


def distance(one: int, other: int) -> int:
    """In how many bits two fingerprints differ."""
    return ((one + _SIGN) ^ (other + _SIGN)).bit_count()
