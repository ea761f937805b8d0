"""The links of a page as a blob: the keys of the distinct pages to which it links, in document order, and the flags of
each link.

    <key of target 1> … <key of target n>     8 bytes each, signed, little-endian
    <flags of target 1> … <flags of target n>  1 byte each

The keys are the keys of the frontier, so a target can be looked up among the crawl's pages; a target that was not
fetched has no page. Nine bytes per link and no header: the keys can be read in place, as an array of integers.
"""

import sys
from array import array
from collections.abc import Iterable
from enum import IntFlag
from typing import Final

from msgspec import Struct

_SIZE: Final = 9


class LinkFlag(IntFlag):
    """Flags of a link. The values are stored: never reuse or renumber one."""

    INTERNAL = 1  # within the crawl's scope
    NOFOLLOW = 2  # marked nofollow, so it was not followed


class PageLinks(Struct, frozen=True):
    """The links of a page: `flags[i]` belongs to `keys[i]`."""

    keys: "array[int]"
    flags: bytes

    def __len__(self) -> int:
        return len(self.keys)

    def followed(self) -> list[int]:
        """Return the keys of targets that are in scope and not marked nofollow."""
        return [key for key, flags in zip(self.keys, self.flags, strict=True) if flags & 3 == LinkFlag.INTERNAL]


def pack_key(key: int) -> bytes:
    """Return a key as stored in a blob. Callers with many keys cache the packed keys, so that `pack` only joins
    them."""
    return key.to_bytes(8, "little", signed=True)


def pack(keys: Iterable[bytes], flags: bytes) -> bytes:
    """Return the blob of packed keys and their flags."""
    return b"".join(keys) + flags


def join(first: bytes, second: bytes) -> bytes:
    """Join two blobs: first the links of `first`, then the links of `second`."""
    mine, theirs = len(first) // _SIZE * 8, len(second) // _SIZE * 8
    return first[:mine] + second[:theirs] + first[mine:] + second[theirs:]


def unpack(blob: bytes) -> PageLinks:
    """Read a blob; raise ValueError if its length is not a whole number of links."""
    count, rest = divmod(len(blob), _SIZE)
    if rest:
        raise ValueError(f"{len(blob)} bytes are not a whole number of links")
    keys = array("q")
    keys.frombytes(blob[: 8 * count])
    if sys.byteorder == "big":
        keys.byteswap()
    return PageLinks(keys, blob[8 * count :])
