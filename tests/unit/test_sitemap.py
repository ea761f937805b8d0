"""Sitemaps of every format, valid, invalid and hostile: which entries are read from them."""

import gc
import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.extract.sitemap import (
    DEEPEST,
    DEFAULT_LIMITS,
    LONGEST_TEXT,
    MOST_PREAMBLE,
    Sitemap,
    SitemapEntry,
    SitemapKind,
    SitemapLimits,
    read_sitemap,
)

XMLNS = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
SMALL = SitemapLimits(max_bytes=2_000, most_entries=5)
TIGHT = SitemapLimits(max_bytes=3_000_000, most_elements=20_000)


def urlset(*urls: str, inside: str = "", head: str = '<?xml version="1.0" encoding="UTF-8"?>') -> bytes:
    entries = "".join(f"<url><loc>{url}</loc>{inside}</url>" for url in urls)
    return f"{head}<urlset {XMLNS}>{entries}</urlset>".encode()


def urls(sitemap: Sitemap) -> list[str]:
    return [entry.url for entry in sitemap.entries]


def read(body: str | bytes, limits: SitemapLimits = DEFAULT_LIMITS) -> Sitemap:
    return read_sitemap(body if isinstance(body, bytes) else body.encode(), limits)


def test_a_set_of_urls_is_read_with_the_dates_of_their_changes() -> None:
    sitemap = read(
        f"""<?xml version="1.0" encoding="UTF-8"?>
        <urlset {XMLNS}>
          <url><loc>https://e.org/?a=1&amp;b=2</loc><lastmod>2024-02-03</lastmod><priority>0.8</priority></url>
          <url><lastmod> 2024-02-03T04:05:06+01:00 </lastmod><loc>
             https://e.org/b
          </loc></url>
          <url><loc><![CDATA[https://e.org/c?x&y]]></loc></url>
        </urlset>"""
    )
    assert (sitemap.kind, sitemap.refused, sitemap.problem) == (SitemapKind.URLS, 0, None)
    assert sitemap.entries == [
        SitemapEntry("https://e.org/?a=1&b=2", "2024-02-03"),
        SitemapEntry("https://e.org/b", "2024-02-03T04:05:06+01:00"),
        SitemapEntry("https://e.org/c?x&y", None),
    ]


@pytest.mark.parametrize("body", [urlset("https://e.org/"), urlset("https://e.org/")[:-3], b"<!DOCTYPE x><urlset/>"])
def test_a_sitemap_that_was_read_leaves_no_reference_cycles(body: bytes) -> None:
    gc.collect()
    gc.disable()
    try:
        read(body)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_an_index_lists_sitemaps() -> None:
    entry = "<sitemap><loc>https://e.org/1.xml.gz</loc><lastmod>2024</lastmod></sitemap>"
    sitemap = read(f"<sitemapindex {XMLNS}>{entry}</sitemapindex>")
    assert (sitemap.kind, sitemap.entries) == (SitemapKind.INDEX, [SitemapEntry("https://e.org/1.xml.gz", "2024")])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\n\n  \n"])
@pytest.mark.parametrize("mark", ["", "\ufeff", "\n \n"])
def test_a_text_has_one_url_a_line(end: str, mark: str) -> None:
    sitemap = read(mark + end.join(["https://e.org/a", "http://e.org/ツ", "/relative", "https://e.org/c"]) + end)
    assert (sitemap.kind, sitemap.refused) == (SitemapKind.TEXT, 1)
    assert urls(sitemap) == ["https://e.org/a", "http://e.org/ツ", "https://e.org/c"]


def test_feeds_are_sitemaps_too() -> None:
    rss = "<rss version='2.0'><channel><link>https://e.org/</link><item><title>x</title><link>https://e.org/a</link>"
    sitemap = read(f"{rss}<pubDate>Sat, 03 Feb 2024 00:00:00 GMT</pubDate></item></channel></rss>")
    assert sitemap.kind is SitemapKind.FEED
    assert sitemap.entries == [SitemapEntry("https://e.org/a", "Sat, 03 Feb 2024 00:00:00 GMT")]
    atom = """<feed xmlns="http://www.w3.org/2005/Atom"><link href="https://e.org/"/><entry><updated>2024</updated>
        <link rel="self" href="https://e.org/a.atom"/><link href="https://e.org/a"/>
        <link rel="alternate" href="https://e.org/a?second"/></entry></feed>"""
    assert read(atom).entries == [SitemapEntry("https://e.org/a", "2024")]


def test_rss_1_0_is_read() -> None:
    sitemap = read(
        """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/"
              xmlns:dc="http://purl.org/dc/elements/1.1/">
          <channel rdf:about="https://e.org/"><link>https://e.org/</link><items><rdf:Seq/></items></channel>
          <item rdf:about="https://e.org/a#1"><title>x</title><link>https://e.org/a</link><dc:date>2024</dc:date></item>
          <item rdf:about="https://e.org/b"><title>named by its URL only</title></item>
        </rdf:RDF>"""
    )
    assert (sitemap.kind, sitemap.problem) == (SitemapKind.FEED, None)
    assert sitemap.entries == [SitemapEntry("https://e.org/a", "2024"), SitemapEntry("https://e.org/b")]


def test_an_rss_item_may_have_only_a_permalink() -> None:
    items = [
        "<item><guid>https://e.org/a</guid><pubDate>Sat</pubDate></item>",
        '<item><guid isPermaLink="true">https://e.org/b</guid><link>https://e.org/b?link</link></item>',
        '<item><guid isPermaLink="false">https://e.org/id/3</guid></item>',
        "<item><description>no page at all</description></item>",
    ]
    sitemap = read(f"<rss><channel>{''.join(items)}</channel></rss>")
    assert sitemap.entries == [SitemapEntry("https://e.org/a", "Sat"), SitemapEntry("https://e.org/b?link")]
    assert (sitemap.refused, sitemap.problem) == (0, None)


@pytest.mark.parametrize(("root", "item"), [("sitemapindex", "sitemap"), ("urlset", "url")])
def test_an_entry_without_loc_may_have_the_url_as_its_text(root: str, item: str) -> None:
    entries = [
        f"<{item}> https://e.org/a\n</{item}>",
        f"<{item}>https://e.org/b<lastmod>2024</lastmod></{item}>",
        f"<{item}>\n <loc>https://e.org/c</loc> text </{item}>",
    ]
    sitemap = read(f"<{root} {XMLNS}>{''.join(entries)}</{root}>")
    assert sitemap.entries == [
        SitemapEntry("https://e.org/a"),
        SitemapEntry("https://e.org/b", "2024"),
        SitemapEntry("https://e.org/c"),
    ]
    assert sitemap.problem is None


def test_several_locs_in_one_entry_are_all_read() -> None:
    entry = "<sitemap><loc>https://e.org/1</loc><loc>https://e.org/2</loc><lastmod>2024</lastmod></sitemap>"
    sitemap = read(f"<sitemapindex {XMLNS}>{entry}</sitemapindex>")
    assert sitemap.entries == [SitemapEntry("https://e.org/1", "2024"), SitemapEntry("https://e.org/2", "2024")]


@pytest.mark.parametrize(
    "entry", ["<url/>", "<url><location>https://e.org/x</location></url>", "<url><loc>/x</loc></url>"]
)
def test_entries_that_give_no_url_are_reported(entry: str) -> None:
    body = f"<urlset {XMLNS}><url><loc>https://e.org/a</loc></url>{entry * 2}</urlset>"
    sitemap = read(body)
    assert (urls(sitemap), sitemap.refused) == (["https://e.org/a"], 2)
    assert sitemap.problem == "has 2 entries without an absolute URL, skipped"


def test_a_text_may_begin_with_something_else() -> None:
    sitemap = read("# Our pages\n\nhttps://e.org/a\nhttps://e.org/b\n")
    assert (sitemap.kind, urls(sitemap)) == (SitemapKind.TEXT, ["https://e.org/a", "https://e.org/b"])
    assert sitemap.problem == "has 1 entry without an absolute URL, skipped"
    assert read("no URL\n" * MOST_PREAMBLE + "https://e.org/a").problem == "is not a sitemap"


def test_elements_of_other_xml_vocabularies_are_not_taken_for_urls() -> None:
    image = "<image:image><image:loc>https://e.org/x.png</image:loc></image:image>"
    video = "<video xmlns='urn:v'><loc>https://e.org/x.mp4</loc></video><xhtml:link href='https://e.org/de'/>"
    assert urls(read(urlset("https://e.org/a", inside=image + video))) == ["https://e.org/a"]


def test_the_vocabulary_itself_may_have_a_prefix() -> None:
    entry = (
        "<s:url><s:loc>https://e.org/a</s:loc><loc>https://e.org/b</loc></s:url><url><loc>https://e.org/c</loc></url>"
    )
    assert urls(read(f"<s:urlset xmlns:s='x'>{entry}</s:urlset>")) == ["https://e.org/a"]


@pytest.mark.parametrize("wrap", [gzip.compress, lambda body: gzip.compress(gzip.compress(body))])
def test_gzip_is_known_by_its_first_bytes(wrap: "type[bytes]") -> None:
    assert urls(read(wrap(urlset("https://e.org/a")))) == ["https://e.org/a"]
    assert urls(read(wrap(b"https://e.org/a\nhttps://e.org/b"))) == ["https://e.org/a", "https://e.org/b"]


def test_a_gzip_file_may_have_several_members_and_padding() -> None:
    start, end = urlset("https://e.org/a", "https://e.org/b")[:120], urlset("https://e.org/a", "https://e.org/b")[120:]
    sitemap = read(gzip.compress(start) + gzip.compress(end) + b"\x00" * 100)
    assert (len(sitemap.entries), sitemap.problem) == (2, None)


@pytest.mark.parametrize("place", [(1 << 16) - 1, 1 << 16, (1 << 16) + 1])
def test_a_member_may_begin_where_a_piece_ends(place: int) -> None:
    packer = zlib.compressobj(0, wbits=31)
    first = packer.compress(b"https://e.org/a".ljust(place - 28, b"\n")) + packer.flush()
    assert len(first) == place
    assert urls(read(first + gzip.compress(b"https://e.org/b"))) == ["https://e.org/a", "https://e.org/b"]


@pytest.mark.parametrize("cut", [11, 40, -9, -1])
def test_a_gzip_file_that_breaks_off_gives_what_was_there(cut: int) -> None:
    packer = zlib.compressobj(wbits=31)
    whole = packer.compress(urlset(*(f"https://e.org/{n * n * n}" for n in range(500)))) + packer.flush()
    sitemap = read(whole[:cut])
    assert sitemap.problem == "is a truncated gzip file"
    assert sitemap.entries or cut in (11, 40)


def test_a_gzip_file_with_damage_gives_what_stood_before() -> None:
    whole = gzip.compress(urlset("https://e.org/a"))
    assert read(whole[:-8] + b"\x00" * 8).problem == "is a damaged gzip file"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1", "windows-1252"])
def test_the_encoding_is_the_one_that_the_file_declares(encoding: str) -> None:
    head = f'<?xml version="1.0" encoding="{encoding}"?>'
    body = urlset("https://e.org/café", head=head).decode().encode(encoding)
    assert urls(read(body)) == ["https://e.org/café"]


@pytest.mark.parametrize("encoding", ["klingon", "utf-7", "shift_jis", "rot13", "x" * 200])
def test_an_encoding_that_cannot_be_read_is_reported(encoding: str) -> None:
    sitemap = read(urlset("https://e.org/a", head=f'<?xml version="1.0" encoding="{encoding}"?>'))
    assert sitemap.problem is not None
    assert "https://e.org/a" not in urls(sitemap)[1:]


@pytest.mark.parametrize("start", [b"\n", b"  \r\n\t", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_blanks_before_the_declaration_are_forgiven(start: bytes) -> None:
    assert urls(read(start + urlset("https://e.org/a"))) == ["https://e.org/a"]


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ("https://e.org/a", True),
        ("HTTP://E.ORG/a", True),
        ("/a", False),
        ("a.html", False),
        ("//e.org/a", False),
        ("e.org/a", False),
        ("ftp://e.org/a", False),
        ("javascript:alert(1)", False),
        ("https://", False),
        ("https:///a", False),
        ("https://e.org/" + "a" * LONGEST_TEXT, False),
    ],
)
def test_only_absolute_urls_are_taken(written: str, taken: bool) -> None:
    sitemap = read(urlset(written, "https://e.org/last"))
    assert (len(sitemap.entries), sitemap.refused) == ((2, 0) if taken else (1, 1))
    assert urls(sitemap)[-1] == "https://e.org/last"


@pytest.mark.parametrize("broken", ["&", "&nbsp;", "<", "</urlset>", "<a b=1>", "\x01", "</url></url>", "<a:b:c/>"])
def test_a_broken_file_gives_what_stood_before_the_break(broken: str) -> None:
    body = urlset("https://e.org/a", "https://e.org/b").decode().replace("</urlset>", f"{broken} <url></urlset>")
    sitemap = read(body)
    assert urls(sitemap) == ["https://e.org/a", "https://e.org/b"]
    assert sitemap.problem is not None
    assert sitemap.problem.startswith("is not valid XML in line 1 (")
    assert sitemap.problem.endswith("the entries before it were read")


@pytest.mark.parametrize("cut", range(80, 184, 7))
def test_a_file_that_breaks_off_is_reported_and_used(cut: int) -> None:
    sitemap = read(urlset("https://e.org/a", "https://e.org/b")[:cut])
    assert sitemap.problem is not None
    assert urls(sitemap) == ["https://e.org/a", "https://e.org/b"][: len(sitemap.entries)]


LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))


@pytest.mark.parametrize(
    "declared",
    [
        f'<!DOCTYPE urlset [<!ENTITY l0 "lol">{LAUGHS}]>',
        '<!DOCTYPE urlset [<!ENTITY x SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE urlset SYSTEM "http://127.0.0.1/x.dtd">',
        '<!DOCTYPE urlset PUBLIC "-//X" "http://127.0.0.1/x.dtd" [<!ENTITY % p SYSTEM "http://127.0.0.1/y">%p;]>',
        "<!DOCTYPE urlset>",
    ],
)
def test_document_types_and_entities_are_refused(declared: str) -> None:
    sitemap = read(f"<?xml version='1.0'?>{declared}<urlset><url><loc>https://e.org/&l9;&x;</loc></url></urlset>")
    assert sitemap.entries == []
    assert sitemap.problem == "has a document type declaration, which is not allowed; it was not read"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "is not a sitemap"),
        (b"   ", "is not a sitemap"),
        (b"not found", "is not a sitemap"),
        (b"{}", "is not a sitemap"),
        (b"\x89PNG\r\n", "is not a sitemap"),
        (b"User-agent: *\nDisallow: /\nSitemap: https://e.org/", "is not a sitemap"),
        (b"<!doctype html><p>hello", "is an HTML page, not a sitemap"),
        (b"<html><body>https://e.org/</body></html>", "is an HTML page, not a sitemap"),
        (b"<opml><loc>https://e.org/</loc></opml>", "is not a sitemap: it begins with <opml>"),
    ],
)
def test_a_file_that_is_not_a_sitemap_is_reported(body: bytes, problem: str) -> None:
    assert read(body) == Sitemap(problem=problem)


def test_no_more_urls_are_taken_than_the_protocol_allows() -> None:
    sitemap = read(urlset(*(f"https://e.org/{n}" for n in range(50_001))))
    assert (len(sitemap.entries), urls(sitemap)[-1]) == (50_000, "https://e.org/49999")
    assert sitemap.problem == "lists more than 50,000 URLs; the rest was not read"
    exact = read("\n".join(f"https://e.org/{n}" for n in range(5)), SMALL)
    assert (len(exact.entries), exact.problem) == (5, None)
    assert read("\n".join(f"https://e.org/{n}" for n in range(6)), SMALL).problem is not None


@pytest.mark.parametrize("wrap", [bytes, gzip.compress])
def test_no_more_bytes_are_read_than_the_protocol_allows(wrap: "type[bytes]") -> None:
    sitemap = read(
        wrap(urlset("https://e.org/a")[:-9] + b" " * 2_000 + b"<url><loc>https://e.org/b</loc></url>"), SMALL
    )
    assert urls(sitemap) == ["https://e.org/a"]
    assert sitemap.problem == "is larger than 2,000 bytes; the rest was not read"


BOMBS = {
    "a tag without end": (lambda: b"<urlset><url><loc x='" + b"a" * 2_500_000, "has a tag longer than"),
    "a comment without end": (lambda: b"<urlset><!--" + b"a" * 2_500_000, "has a tag longer than"),
    "depth": (lambda: b"<urlset>" + b"<a>" * (DEEPEST + 5), f"is nested more than {DEEPEST} deep"),
    "empty elements": (lambda: b"<urlset>" + b"<a/>" * 20_001, "has more than 20,000 elements"),
    "empty lines": (lambda: b"https://e.org/a" + b"\n" * 100_000, "has more than 20,000 lines"),
    "a text without end": (lambda: b"<urlset><url><loc>https://e.org/" + b"a" * 2_900_000, "is not valid XML"),
    "zeros in gzip": (lambda: gzip.compress(bytes(4_000_000)), "is larger than"),
    "gzip in gzip": (lambda: gzip.compress(gzip.compress(bytes(40_000_000))), "is larger than"),
    "empty members": (lambda: gzip.compress(b"") * 100_000, "is a gzip file of more than 1,000 members"),
    "empty members in gzip": (
        lambda: gzip.compress(gzip.compress(b"") * 100_000),
        "is a gzip file of more than 1,000 members",
    ),
    "gzip in gzip in gzip": (lambda: gzip.compress(gzip.compress(gzip.compress(bytes(4_000_000)))), "is not a sitemap"),
}


@pytest.mark.parametrize(("build", "problem"), BOMBS.values(), ids=BOMBS)
def test_a_bomb_costs_little_memory(build: Callable[[], bytes], problem: str) -> None:
    body = build()
    tracemalloc.start()
    try:
        sitemap = read(body, TIGHT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sitemap.problem is not None
    assert sitemap.problem.startswith(problem)
    assert peak < 4_000_000


MARKUP = [
    "<urlset>",
    "</urlset>",
    "<url>",
    "</url>",
    "<loc>",
    "</loc>",
    "https://e.org/a",
    "<lastmod>",
    "</lastmod>",
    "&amp;",
    "<sitemapindex>",
    "<sitemap>",
    "<rss>",
    "<channel>",
    "<item>",
    "<link>",
    "<feed>",
    "<entry>",
    "<link/>",
    "<![CDATA[",
    "]]>",
    "<!--",
    "-->",
    "<!DOCTYPE",
    "<?x?>",
    "\x00",
    "ツ",
    "<a:b>",
    "&x;",
    "2024",
    "<?xml?>",
]
FILES = st.lists(st.sampled_from(MARKUP), max_size=30).map("".join).map(str.encode)


@given(st.binary(max_size=500) | FILES, st.booleans())
@example(b"\xff\xfe<\x00u\x00", False)
@example(b"\x1f\x8b", False)
@example(b"\x1f\x8b\x08\x00", False)
@example(b"<?xml version='1.0' encoding='utf-16'?><urlset/>", False)
@example(b"<?xml version='1.0' encoding='\xc3'?><urlset/>", False)
def test_no_bytes_are_too_odd_to_be_read(body: bytes, packed: bool) -> None:
    sitemap = read(gzip.compress(body) if packed else body)
    assert all(url.lower().startswith(("http://", "https://")) for url in urls(sitemap))
    assert sitemap.kind is not None or (sitemap.problem and not sitemap.entries)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=20), max_size=8))
def test_the_urls_of_a_sitemap_are_read_as_they_were_written(tails: list[str]) -> None:
    from xml.sax.saxutils import escape

    written = [f"https://e.org/{tail}" for tail in tails if tail == tail.strip() and "\ufffe" not in tail]
    written = [url for url in written if "\uffff" not in url]
    assert urls(read(urlset(*map(escape, written)))) == written
