"""The links of a page as a blob: the keys of the distinct pages it leads to, in its order, and flags for each.

    <key of target 1> … <key of target n>     8 bytes each, signed, little-endian
    <flags of target 1> … <flags of target n>  1 byte each

A key is the one that the frontier knows a URL by, so a target is looked up among the crawl's pages by it; one that was
not fetched has no page. Nine bytes a link, no header: the keys can be read in place, as an array of numbers.
"""

import sys
from array import array
from collections.abc import Iterable
from enum import IntFlag
from typing import Final

from msgspec import Struct

_SIZE: Final = 9


class LinkFlag(IntFlag):
    """What is known of a link. Numbers are stored: never reuse or renumber one."""

    INTERNAL = 1  # it stays within the crawl's scope
    NOFOLLOW = 2  # the page asked not to follow it, so it was not


class Links(Struct, frozen=True):
    """Where a page leads to: `flags[i]` is about `keys[i]`."""

    keys: "array[int]"
    flags: bytes

    def __len__(self) -> int:
        return len(self.keys)

    def followed(self) -> list[int]:
        """The keys of targets within the scope that nobody asked not to follow."""
        return [key for key, flags in zip(self.keys, self.flags, strict=True) if flags & 3 == LinkFlag.INTERNAL]


def pack_key(key: int) -> bytes:
    """A key as a blob holds it. Whoever packs many keeps them packed: joining them is all that is left to do."""
    return key.to_bytes(8, "little", signed=True)


def pack(keys: Iterable[bytes], flags: bytes) -> bytes:
    """The blob of packed keys and their flags."""
    return b"".join(keys) + flags


def join(first: bytes, second: bytes) -> bytes:
    """One blob of two, the links of the first before those of the second."""
    mine, theirs = len(first) // _SIZE * 8, len(second) // _SIZE * 8
    return first[:mine] + second[:theirs] + first[mine:] + second[theirs:]


def unpack(blob: bytes) -> Links:
    """Read a blob; raise ValueError if its length is not a whole number of links."""
    count, rest = divmod(len(blob), _SIZE)
    if rest:
        raise ValueError(f"{len(blob)} bytes are not a whole number of links")
    keys = array("q")
    keys.frombytes(blob[: 8 * count])
    if sys.byteorder == "big":
        keys.byteswap()
    return Links(keys, blob[8 * count :])
