"""The link blob: nine bytes a link, read back as it was written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.pages.links import LinkFlag, pack, pack_key, unpack

LEAST, MOST = -(1 << 63), (1 << 63) - 1
KEYS = st.lists(st.tuples(st.integers(LEAST, MOST), st.integers(0, 3)), max_size=200)


@given(KEYS)
def test_links_are_read_back_in_order(links: list[tuple[int, int]]) -> None:
    keys, flags = [key for key, _ in links], bytes(flag for _, flag in links)
    blob = pack(map(pack_key, keys), flags)
    assert len(blob) == 9 * len(links)
    found = unpack(blob)
    assert (list(found.keys), found.flags, len(found)) == (keys, flags, len(links))


def test_the_blob_is_what_other_programs_expect() -> None:
    blob = pack([pack_key(1), pack_key(-2)], bytes([LinkFlag.INTERNAL, LinkFlag.NOFOLLOW]))
    assert blob.hex() == "0100000000000000" + "feffffffffffffff" + "01" + "02"


def test_followed_links_are_internal_and_not_nofollow() -> None:
    flags = [LinkFlag.INTERNAL, LinkFlag(0), LinkFlag.INTERNAL | LinkFlag.NOFOLLOW, LinkFlag.INTERNAL]
    assert unpack(pack(map(pack_key, [1, 2, 3, 4]), bytes(flags))).followed() == [1, 4]


@pytest.mark.parametrize("length", [1, 8, 10])
def test_bytes_that_are_not_a_link_blob_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match="not a whole number of links"):
        unpack(bytes(length))
