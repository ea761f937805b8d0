"""Queries of links on pages that are not UTF-8."""

import pytest

from shoal.base.url import Canonicalizer, Url
from shoal.extract.encoding import with_encoded_queries

BASE = Url("http://h/dir/page?q")


@pytest.mark.parametrize(
    ("encoding", "text", "escaped"),
    [
        ("windows-1252", "café", "caf%E9"),
        ("windows-1252", "†", "%86"),
        ("windows-1252", "日", "%26%2326085%3B"),
        ("iso-8859-2", "łé日", "%B3%E9%26%2326085%3B"),
        ("koi8-u", "ї", "%A7"),
        ("windows-874", "ก", "%A1"),
        ("iso-8859-8-i", "א", "%E0"),
        ("x-user-defined", "\uf7ff", "%FF"),
        ("shift_jis", "日本", "%93%FA%96{"),
        ("shift_jis", "\u2212", "%81|"),
        ("euc-jp", "日", "%C6%FC"),
        ("iso-2022-jp", "\u203e\\", "%1B(J~%1B(B\\"),
        ("iso-2022-jp", "日", "%1B$BF|%1B(B"),
        ("gbk", "€中", "%80%D6%D0"),
        ("gb18030", "\ue5e5", "%26%2358853%3B"),
        ("gb18030", "€", "%A2%E3"),
        ("big5", "中", "%A4%A4"),
        ("big5", "㐀", "%26%2313312%3B"),
        ("euc-kr", "한", "%C7%D1"),
        ("utf-8", "é", "%C3%A9"),
        ("utf-16le", "é", "%C3%A9"),
        (None, "é", "%C3%A9"),
        ("no-such-encoding", "é", "%C3%A9"),
    ],
)
def test_a_query_is_escaped_in_the_encoding_of_its_page(encoding: str | None, text: str, escaped: str) -> None:
    links = with_encoded_queries([f"?q={text}&x=1#é"], encoding)
    assert Canonicalizer().resolve(BASE, links) == [f"http://h/dir/page?q={escaped}&x=1"]


def test_nothing_but_the_query_is_escaped_by_it() -> None:
    links = with_encoded_queries(["/é#?é", "//é.example/?a", "/a?b", "/é?é"], "windows-1252")
    assert Canonicalizer().resolve(BASE, links) == [
        "http://h/%C3%A9",
        "http://xn--9ca.example/?a",
        "http://h/a?b",
        "http://h/%C3%A9?%E9",
    ]
