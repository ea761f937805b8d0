"""WARC and Markdown outputs: made from stored bodies, and read back with common tools."""

import gzip
import io
import json
import shutil
import threading
from pathlib import Path

import pytest
from warcio.archiveiterator import ArchiveIterator

from shoal.base.clock import SystemClock
from shoal.base.errors import BackendUnavailable, BadConfig, InvalidInput
from shoal.drivers.folder_bodies import FolderBodies
from shoal.egress import Headers, Limits, Request, Response
from shoal.pages.bodies import CapturedExchange
from shoal.pages.export.markdown import MARK, file_name
from shoal.pages.export.output import Outputs
from shoal.pages.export.warc import SortedLines, surt
from shoal.pages.page import Page
from shoal.pages.warc import BodyRecorder

CRAWL = "crl_1"
LIMITS = Limits()
AT = 1_790_000_000_123_456
MAIN = b"<h1>Fish</h1><p>Fish swim in <a href='/sea'>the sea</a>, far out.</p>"
HTML = b"<title>Fish</title><nav>menu</nav><main>" + MAIN + b"</main>"


@pytest.fixture
def bodies(tmp_path: Path) -> FolderBodies:
    return FolderBodies(tmp_path / "bodies", SystemClock())


def captured(
    url: str, body: bytes = HTML, head: str = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8"
) -> CapturedExchange:
    block = f"{head}\r\n\r\n".encode()
    return CapturedExchange(Request(url), Response(url, int(head[9:12]), Headers(block), body, "192.0.2.7", 0.1))


async def kept(bodies: FolderBodies, *answers: tuple[str, tuple[CapturedExchange, ...]]) -> list[Page]:
    recorder = BodyRecorder(bodies, CRAWL)
    pages = []
    for url, captures in answers:
        page = Page(url, 0, AT, 1, final_url=captures[0].response.url, status=captures[0].response.status, title="Fish")
        pages.append(page)
        recorder.add(page, captures)
    await recorder.write(recorder.take())
    await recorder.close()
    return pages


async def exported(name: Path, pages: list[Page], bodies: FolderBodies, limits: Limits = LIMITS) -> None:
    outputs = Outputs([str(name)])
    outputs.check()
    await outputs.open(CRAWL, AT, limits)
    for page in pages:  # each in a write of its own
        await outputs.write([page], bodies)
    await outputs.complete()


async def test_an_archive_holds_every_answer_and_its_index_finds_each(bodies: FolderBodies, tmp_path: Path) -> None:
    hop = captured("http://www.a.example/old", b"", "HTTP/1.1 301 Moved\r\nLocation: /new")
    pages = await kept(
        bodies,
        ("http://www.a.example/b", (captured("http://www.a.example/b"),)),
        ("http://www.a.example/old", (captured("http://www.a.example/new"), hop)),
        ("http://www.a.example/gone", (captured("http://www.a.example/gone", b"no", "HTTP/1.1 404 Not Found"),)),
    )
    pages.append(Page("http://nowhere.example/", 0, AT, 1, error_code="dns", error_message="No such name."))
    await exported(tmp_path / "x.warc.gz", pages, bodies)
    data = (tmp_path / "x.warc.gz").read_bytes()
    kinds = [record.rec_type for record in ArchiveIterator(io.BytesIO(data), check_digests="raise")]
    assert kinds == ["warcinfo"] + ["response", "request"] * 4
    lines = (tmp_path / "x.cdxj").read_text().splitlines()
    assert lines == sorted(lines)
    assert [line.split(" ")[0] for line in lines] == [
        "example,a)/b",
        "example,a)/gone",
        "example,a)/new",
        "example,a)/old",
    ]
    for line in lines:
        _, moment, text = line.split(" ", 2)
        told = json.loads(text)
        [record, *_] = ArchiveIterator(io.BytesIO(data[int(told["offset"]) :][: int(told["length"])]))
        assert moment == "20260921141320"
        assert record.rec_headers["WARC-Target-URI"] == told["url"]
        assert record.http_headers.get_statuscode() == told["status"]
        assert told["filename"] == "x.warc.gz"
        assert told["digest"] == record.rec_headers["WARC-Payload-Digest"]
    assert json.loads(lines[0].split(" ", 2)[2])["mime"] == "text/html"


def test_an_index_larger_than_memory_is_sorted_all_the_same(tmp_path: Path) -> None:
    lines = SortedLines(tmp_path, most=10)
    given = [f"{number * 7919 % 1000:03}\n".encode() for number in range(105)]
    lines.add(given[:33])
    lines.add(given[33:])
    assert list(lines.all()) == sorted(given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://www.example.com/", "com,example)/"),
        ("https://www2.Example.com:443/A/B/", "com,example)/a/b"),
        ("http://example.com:8080/x", "com,example:8080)/x"),
        ("http://example.com/path/?B=2&a=X", "com,example)/path?a=x&b=2"),
        ("http://example.com/a%20b%2Fc", "com,example)/a%20b/c"),
        ("http://example.com/a//b/../c", "com,example)/a/c"),
        ("http://127.0.0.1:8080/p/1", "1,0,0,127:8080)/p/1"),
        ("http://[::1]:8080/x", "::1:8080)/x"),
        ("http://localhost:39711/old", "localhost:39711)/old"),
        ("http://sub.example.co.uk/index.html#frag", "uk,co,example,sub)/index.html"),
        ("http://example.com/page?PHPSESSID=0123456789abcdef0123456789abcdef&x=1", "com,example)/page?x=1"),
        ("http://example.com/a?cfid=1&cftoken=2&z=3", "com,example)/a?z=3"),
        ("http://example.com/(S(4hqa0555fwsecu455xqckv45))/mileg.aspx", "com,example)/mileg.aspx"),
        ("http://example.com/a?x=%C3%A9", "com,example)/a?x=%c3%a9"),
        ("http://example.com/a?&&x=1", "com,example)/a?&&x=1"),
        ("http://example.com./", "com,example)/"),
        ("http://example.com/%E4%BD%A0?x=%7B%7D|", "com,example)/%e4%bd%a0?x={}|"),
        ("http://wwwx.example.com/", "com,example,wwwx)/"),
    ],
)
def test_an_address_has_the_key_that_replay_tools_look_it_up_by(url: str, key: str) -> None:
    assert surt(url) == key


async def test_a_markdown_folder_has_a_file_for_each_page_and_an_index(bodies: FolderBodies, tmp_path: Path) -> None:
    pages = await kept(bodies, ("http://a.example/fish", (captured("http://a.example/fish"),)))
    pages[0].title = 'A "quoted": [title]\n---'
    pages.append(Page("http://a.example/none", 1, AT, 1, error_code="timeout", error_message="Too slow."))
    folder = tmp_path / "x.md"
    await exported(folder, pages, bodies)
    text = (folder / file_name("http://a.example/fish")).read_text()
    assert text.startswith("---\n")
    head, body = text[4:].split("\n---\n", 1)
    facts = dict(line.split(": ", 1) for line in head.splitlines())
    assert json.loads(facts["url"]) == "http://a.example/fish"
    assert json.loads(facts["title"]) == 'A "quoted": [title]\n---'
    assert json.loads(facts["fetched_at"]) == "2026-09-21T14:13:20.123456Z"
    assert "# Fish" in body
    assert "[the sea](http://a.example/sea)" in body
    assert "menu" not in body
    assert '"code":"timeout"' in (folder / file_name("http://a.example/none")).read_text()
    index = (folder / "index.md").read_text().splitlines()
    assert index[0] == MARK
    assert index[-2:] == [
        rf'- [A "quoted": \[title\] ---]({file_name("http://a.example/fish")})',
        f"- [http://a.example/none]({file_name('http://a.example/none')})",
    ]


async def test_a_markdown_folder_is_replaced_only_if_it_was_made_here(bodies: FolderBodies, tmp_path: Path) -> None:
    folder = tmp_path / "x.md"
    pages = await kept(bodies, ("http://a.example/", (captured("http://a.example/"),)))
    await exported(folder, pages, bodies)
    await exported(folder, pages, bodies)
    (folder / "index.md").write_text("my own notes")
    with pytest.raises(BadConfig, match="other files"):
        Outputs([str(folder)])
    (tmp_path / "y.md").write_text("my own file")
    with pytest.raises(BadConfig, match="is a file"):
        Outputs([str(tmp_path / "y.md")])


@pytest.mark.parametrize("written", [0, 5])
def test_a_markdown_folder_that_was_broken_off_at_its_first_bytes_is_begun_anew(tmp_path: Path, written: int) -> None:
    folder = tmp_path / "x.md"
    folder.mkdir()
    (folder / "index.md").write_text(MARK[:written])
    Outputs([str(folder)])
    (folder / "mine.txt").write_text("my own file")
    with pytest.raises(BadConfig, match="other files"):
        Outputs([str(folder)])


async def test_a_host_named_like_the_index_file_gets_another_folder(bodies: FolderBodies, tmp_path: Path) -> None:
    await exported(tmp_path / "x.md", await kept(bodies, ("http://index.md/", (captured("http://index.md/"),))), bodies)
    assert "# Fish" in (tmp_path / "x.md" / file_name("http://index.md/")).read_text()


@pytest.mark.parametrize(("most", "is_read"), [(1000, False), (100_000_000, True)])
async def test_a_kept_body_is_unpacked_as_far_as_the_operator_allows(
    bodies: FolderBodies, tmp_path: Path, most: int, is_read: bool
) -> None:
    packed = gzip.compress(HTML + b" " * 40_000_000)
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip"
    pages = await kept(bodies, ("http://a.example/", (captured("http://a.example/", packed, head),)))
    await exported(tmp_path / "x.md", pages, bodies, Limits(max_decoded_bytes=most))
    assert ("# Fish" in (tmp_path / "x.md" / file_name("http://a.example/")).read_text()) is is_read


async def test_files_of_an_earlier_run_are_removed_in_a_thread(
    bodies: FolderBodies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    monkeypatch.setattr(shutil, "rmtree", lambda folder: threads.append(threading.current_thread()))
    outputs = Outputs([str(tmp_path / "x.md")])
    await outputs.open(CRAWL, AT, LIMITS)
    outputs.leave()
    with pytest.raises(BackendUnavailable):  # it is still there: nobody removed it
        await outputs.open(CRAWL, AT, LIMITS)
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


async def test_an_index_never_has_its_name_before_its_archive(bodies: FolderBodies, tmp_path: Path) -> None:
    outputs = Outputs([str(tmp_path / "x.warc.gz")])
    await outputs.open(CRAWL, AT, LIMITS)
    (tmp_path / "x.warc.gz").mkdir()  # so that the archive cannot have its name
    with pytest.raises(BackendUnavailable):
        await outputs.complete()
    outputs.leave()
    assert not (tmp_path / "x.cdxj").exists()


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example/../../etc/passwd",
        "http://a.example/%2e%2e%2f%2e%2e%2fetc",
        "http://a.example/" + "long/" * 200,
        "http://..:80/",
        "http://a.example/CON",
        "http://a.example/\ud800",
        "http://[::1]:80/x",
    ],
)
def test_the_name_of_a_file_stays_in_its_folder_whatever_the_url(url: str) -> None:
    host, name = file_name(url).split("/")
    assert host not in ("", ".", "..")
    assert len(name) <= 105
    assert not name.startswith(".")
    assert set(host + name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


def test_two_urls_never_share_a_file() -> None:
    urls = ["http://a.example/a", "http://a.example/A", "http://a.example/a?x", "http://a.example/a/"]
    assert len({file_name(url).lower() for url in urls}) == len(urls)


def test_an_output_made_from_bodies_is_refused_for_a_crawl_that_kept_none(tmp_path: Path) -> None:
    outputs = Outputs([str(tmp_path / "x.warc.gz"), str(tmp_path / "x.jsonl")])
    assert outputs.from_bodies == [str(tmp_path / "x.warc.gz")]
    with pytest.raises(InvalidInput, match="--keep-bodies"):
        outputs.check_bodies(CRAWL, kept=False)
    outputs.check_bodies(CRAWL, kept=True)
