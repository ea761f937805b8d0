"""Seeds as users name them: without a scheme, and in files of several formats."""

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from shoal.base.errors import InvalidInput, UsageError
from shoal.cli import seeds as module
from shoal.cli.seeds import Seeds, with_scheme

URLS = ["https://a.example/1", "https://a.example/2?x=1,2"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def cdxj(url: str) -> str:
    return f"example,a)/1 20260101000000 {json.dumps({'url': url, 'status': '200'})}\n"


FORMATS = {
    "lines.txt": "\ufeff# a comment\n" + "\n\n".join(URLS) + "\n",
    "spaces.txt": "".join(f"  {url}\r\n" for url in URLS),
    "header.csv": "Name,URL\n" + "".join(f'"x, y","{url}"\n' for url in URLS),
    "semicolons.csv": "address;n\n" + "".join(f"{url};1\n" for url in URLS),
    "tabs.tsv": "n\turl\n" + "".join(f"1\t{url}\n" for url in URLS),
    "one-column.csv": "url\n" + "".join(f'"{url}"\n' for url in URLS),
    "no-header.csv": "".join(f'7,"{url}"\n' for url in URLS),
    "pages.jsonl": "".join(json.dumps({"n": 1, "url": url}) + "\n" for url in URLS),
    "texts.jsonl": "".join(json.dumps(url) + "\n" for url in URLS),
    "index.cdxj": "".join(map(cdxj, URLS)),
    "index.cdx": " CDX N b a m s\n" + "".join(f"example,a)/ 20260101000000 {url} text/html 200\n" for url in URLS),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_is_read_in_every_format(name: str) -> None:
    Path(name).write_text(FORMATS[name], newline="")
    assert [seed.url for seed in Seeds([], name)] == URLS
    assert [seed.url for seed in Seeds(["https://b.example/", f"@{name}"])] == ["https://b.example/", *URLS]


def test_a_compressed_file_and_stdin_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = FORMATS["index.cdxj"].encode()
    Path("index.cdxj.gz").write_bytes(gzip.compress(text))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    for name in ("index.cdxj.gz", "-"):
        assert [seed.url for seed in Seeds([], name)] == URLS


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("example.com", "https://example.com"),
        ("example.com/a?b#c", "https://example.com/a?b#c"),
        ("shop.example.com:8443/a", "https://shop.example.com:8443/a"),
        ("localhost", "http://localhost"),
        ("localhost:8000/a", "http://localhost:8000/a"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("[::1]:8000/", "http://[::1]:8000/"),
        ("bücher.example", "https://bücher.example"),
        ("http://example.com", "http://example.com"),
        ("intranet", "intranet"),
        ("mailto:me@example.com", "mailto:me@example.com"),
        ("me@example.com", "me@example.com"),
        ("../a.b", "../a.b"),
        ("example.com a", "example.com a"),
    ],
)
def test_the_scheme_that_is_tried(text: str, url: str) -> None:
    assert with_scheme(text) == url


def test_a_scheme_that_was_not_written_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert [seed.url for seed in Seeds(["example.com"])] == ["https://example.com"]
    assert capsys.readouterr().err == "example.com has no scheme; trying https://example.com.\n"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("bad.txt", "https://a.example/\nhtp:/b\n", r"line 2 of bad.txt 'htp:/b' has a scheme other than http"),
        (
            "bad.txt",
            "nothing\nhttps://a/\nnone\n",
            r"line 1 of bad.txt 'nothing' .*; line 3 of bad.txt cannot be fetched",
        ),
        ("bad.txt", "\n".join("x" * 13), r"line 10 of bad.txt, line 11 of bad.txt and 2 more cannot be fetched either"),
        ("bad.csv", "name,size\nx,3\n", "bad.csv has no column with URLs; name the column of the URLs `url`"),
        ("bad.jsonl", '{"url": "https://a.example/"}\n{"link": 1}\n', "line 2 of bad.jsonl has no text `url`"),
        ("bad.jsonl", '{"url": "https://a.example/"}\n{"url\n', "line 2 of bad.jsonl .* is not JSON"),
        ("bad.cdxj", cdxj(URLS[0]) + "nothing\n", "line 2 of bad.cdxj 'nothing' is not CDXJ"),
        ("empty.txt", "# nothing\n", "empty.txt has no URL"),
    ],
)
def test_a_line_that_is_no_url_is_refused_by_its_place(name: str, text: str, says: str) -> None:
    Path(name).write_text(text)
    with pytest.raises(InvalidInput, match=says):
        Seeds([], name)


def test_a_file_that_cannot_be_read_is_refused_by_its_name() -> None:
    Path("binary.txt").write_bytes(b"\xff\xfe\x00")
    Path("broken.txt.gz").write_bytes(gzip.compress(b"https://a.example/\n" * 9)[:-9])
    for words, says in (
        (["@absent.txt"], "absent.txt cannot be read"),
        (["@binary.txt"], "is not UTF-8"),
        (["@broken.txt.gz"], "broken.txt.gz cannot be read"),
    ):
        with pytest.raises(InvalidInput, match=says):
            Seeds(words)
    Path("urls.txt").write_text("https://a.example/\n")
    with pytest.raises(UsageError, match=r'"urls.txt" is a file, not a URL; read it with `--seeds urls.txt`'):
        Seeds(["urls.txt"])


def test_a_large_file_comes_in_batches_that_fit_into_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SEEDS", 30)
    monkeypatch.setattr(module, "FIRST", 5)
    monkeypatch.setattr(module, "BATCH", 10)
    monkeypatch.setattr(module, "BATCH_BYTES", 400)
    urls = [f"https://a.example/{number}{'x' * number}" for number in range(31)]
    Path("urls.txt").write_text("\n".join(urls))
    found = Seeds([], "urls.txt")
    assert found.has_more
    parts = list(found.more())
    assert [seed.url for seed in [*found.first, *(seed for part in parts for seed in part)]] == urls
    assert max(map(len, parts)) <= 10
    assert max(sum(len(seed.url) for seed in part) for part in parts) <= 400
    Path("urls.txt").write_text("\n".join(urls[:30]))
    fewer = Seeds([], "urls.txt")
    assert (len(fewer.first), fewer.has_more, list(fewer.more())) == (30, False, [])
