"""One page, now: `shoal.fetch`, `shoal fetch` and `shoal shell`."""

import asyncio
import gzip
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import shoal
from shoal.base.errors import InvalidInput
from shoal.cli.main import main
from tests.packages.conftest import Answer, ScriptedSite, html, serving
from tests.support.script_site import EMPTY, script_site

pytestmark = pytest.mark.usefixtures("default_store")

CARP = "<title>Carp</title><nav><a href=/>Home</a></nav><main><h1>Carp</h1><p>A <b>carp</b>.</p></main>"


def fish(path: str) -> Answer | None:
    match path:
        case "/":
            return 200, {"Content-Type": "text/html; charset=utf-8"}, CARP
        case "/moved":
            return 301, {"Location": "/"}, ""
        case "/loop":
            return 302, {"Location": "/loop"}, ""
        case "/list.json":
            return 200, {"Content-Type": "application/json"}, "[1, 2]"
        case "/picture.png":
            return 200, {"Content-Type": "image/png"}, b"\x89PNG\r\n\x1a\n\x00"
        case "/app":
            return 200, {"Content-Type": "text/html"}, EMPTY
        case "/slow-down":
            return 429, {"Retry-After": "30"}, "later"
    return None


async def run(*words: str) -> int:
    return await asyncio.to_thread(main, list(words))


async def test_a_page_is_fetched_with_its_content() -> None:
    async with serving(ScriptedSite(fish)) as site:
        page = await shoal.fetch(f"{site.url}/moved")
        assert (page.url, page.final_url, page.status) == (f"{site.url}/moved", f"{site.url}/", 200)
        assert page.redirects == [{"url": f"{site.url}/moved", "status": 301}]
        assert (page.title, page.markdown) == ("Carp", "# Carp\n\nA **carp**.")
        assert page.record()["crawl_id"] is None
        assert (await shoal.fetch(f"{site.url}/list.json")).json() == [1, 2]
        missing = await shoal.fetch(f"{site.url}/missing", headers={"X-Pond": "north"}, user_agent="Carp/1")
        assert (missing.status, missing.html) == (404, "")
        assert site.told("/missing", "x-pond") == ["north"]
        assert "Carp/1" in site.agents
        assert (await shoal.fetch(f"{site.url}/loop")).error == {
            "code": "redirect_loop",
            "message": "The redirects form a loop.",
        }


async def test_robots_txt_and_holds_of_a_host_are_obeyed() -> None:
    async with serving(ScriptedSite(fish, robots=(200, {}, "User-agent: *\nDisallow: /list"))) as site:
        refused = await shoal.fetch(f"{site.url}/list.json")
        assert refused.status is None
        assert refused.error == {
            "code": "robots_denied",
            "message": f"The robots.txt of {site.url} forbids {site.url}/list.json.",
        }
        with pytest.raises(shoal.BodyNotKept, match="forbids"):
            _ = refused.html
        assert (await shoal.fetch(f"{site.url}/list.json", robots="ignore")).status == 200
        assert (await shoal.fetch(f"{site.url}/slow-down")).status == 429
        crawl = shoal.crawl(f"{site.url}/")
        waiting = asyncio.create_task(anext(crawl))
        done, _ = await asyncio.wait({waiting}, timeout=1)
        assert not done  # the crawl knows the hold that the single page met
        waiting.cancel()
        await asyncio.wait({waiting})
        await crawl.aclose()
        assert site.times("/") == 0


async def test_private_addresses_of_strangers_are_refused() -> None:
    async with serving(ScriptedSite(fish)) as site:
        with pytest.raises(InvalidInput, match="is not allowed"):
            await shoal.fetch(site.url, trust_seeds=False)
        assert site.asked == []


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("ftp://a.example/", {}, r"^url 'ftp://a.example/'"),
        ("http://a.example/", {"max_pages": 3}, "^max_pages is not an option of a single page; use render, wait_for"),
        ("http://a.example/", {"render": "sometimes"}, "^render"),
    ],
)
async def test_invalid_options_are_refused_by_name(url: str, options: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        await shoal.fetch(url, **options)


async def test_a_page_is_rendered_if_it_needs_a_browser(
    chromium: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHOAL_CHROMIUM", chromium)
    async with serving(ScriptedSite(script_site)) as site:
        assert "text number" not in (await shoal.fetch(site.url)).text
        page = await shoal.fetch(site.url, render="auto", screenshot=True)
        assert page.rendered
        assert "text number 0" in page.markdown
        assert page.screenshot is not None
        assert await run("fetch", site.url, "--format", "screenshot", "-o", "page.png") == 0
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    assert page.screenshot.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "# Carp\n\nA **carp**.\n"),
        (("--format", "text"), "Carp\n\nA carp.\n"),
        (("--format", "html"), f"{CARP}\n"),
    ],
)
async def test_the_command_prints_the_content(
    words: tuple[str, ...], expected: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    async with serving(ScriptedSite(fish)) as site:
        assert await run("fetch", site.url, *words) == 0
    assert capsysbinary.readouterr().out.decode() == expected


async def test_links_and_the_record_are_printed_as_json(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    async with serving(ScriptedSite(fish)) as site:
        assert await run("fetch", site.url, "--format", "links") == 0
        [link] = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
        assert link == {"url": f"{site.url}/", "text": "Home", "rel": "", "nofollow": False, "kind": "a"}
        assert await run("fetch", site.url, "--json") == 0
        record = json.loads(capsysbinary.readouterr().out)
        assert (record["url"], record["title"], record["status"]) == (f"{site.url}/", "Carp", 200)


async def test_exit_codes_tell_pages_from_errors(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    async with serving(ScriptedSite(fish, robots=(200, {}, "User-agent: *\nDisallow: /list"))) as site:
        assert await run("fetch", f"{site.url}/missing") == 1
        assert "The server answered 404." in capsys.readouterr().err
        assert await run("fetch", f"{site.url}/picture.png") == 0
        assert "nothing to print in this format; its type is image/png." in capsys.readouterr().err
        assert await run("fetch", f"{site.url}/app") == 0
        assert "makes its content with scripts; fetch it with --render auto." in capsys.readouterr().err
        assert await run("fetch", f"{site.url}/list.json", "-o", "list.md") == 3
        assert "the URL returned no page (The robots.txt of" in capsys.readouterr().err
        assert not (tmp_path / "list.md").exists()
        assert await run("fetch", f"{site.url}/list.json", "--json") == 3
        assert json.loads(capsys.readouterr().out)["error"]["code"] == "robots_denied"
    assert await run("fetch", "http://127.0.0.1:1/") == 3
    assert await run("fetch", "ftp://a.example/") == 2
    assert await run("fetch", "http://a.example/", "--format", "screenshot", "--render", "never") == 2
    assert await run("fetch", "http://a.example/", "-o", "absent/page.md") != 0
    assert "absent/page.md" in capsys.readouterr().err


async def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("before")
    async with serving(ScriptedSite(fish)) as site:
        assert await run("fetch", f"{site.url}/", "--output", "page.md") == 0
    assert (tmp_path / "page.md").read_text() == "# Carp\n\nA **carp**.\n"
    assert not (tmp_path / "page.md.part").exists()


async def test_only_a_file_with_rows_of_a_page_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.csv").write_text("my own\n")
    async with serving(ScriptedSite(fish)) as site:
        for form in ("links", "json"):
            words = ("fetch", f"{site.url}/", "--format", form, "-o", "mine.csv")
            assert await run(*words) == 2
            assert "'mine.csv' exists and does not look like an output of Shoal's" in capsys.readouterr().err
        for form in ("links", "json"):
            for _ in range(2):
                assert await run("fetch", f"{site.url}/", "--format", form, "-o", f"{form}.jsonl") == 0
    assert (tmp_path / "mine.csv").read_text() == "my own\n"
    assert not (tmp_path / "mine.csv.part").exists()


async def test_a_page_of_ten_megabytes_is_cut_and_the_user_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def long(path: str) -> Answer:
        return html("Long", text="carp " * 1_900_000)

    async with serving(ScriptedSite(long)) as site:
        assert await run("fetch", site.url, "--format", "text") == 0
    told = capsys.readouterr()
    assert 1_900_000 < len(told.out) < 2_100_000
    assert "only its first part was read" in told.err


@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_a_page_over_a_limit_names_the_limit_and_blames_no_url(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    setting, body = "SHOAL_MAX_DECODED" if encoding else "SHOAL_MAX_BODY", b"carp " * 1_000
    monkeypatch.setenv("SHOAL_MAX_BODY", "2KB")
    monkeypatch.setenv("SHOAL_MAX_DECODED", "4KB")

    def long(path: str) -> Answer:
        headers = {"Content-Type": "text/html", **({"Content-Encoding": encoding} if encoding else {})}
        return 200, headers, gzip.compress(body) if encoding else body

    async with serving(ScriptedSite(long)) as site:
        assert await run("fetch", site.url) == (5 if encoding else 3)
        told = capsys.readouterr().err
        assert f"the limit of {'4KB' if encoding else '2KB'}, which for pages is {setting}" in told
    assert encoding or "change the setting and try again." in told
    assert "check the URL" not in told


async def test_the_shell_has_the_page_and_fetches_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, without_ipython: Callable[[], None]
) -> None:
    without_ipython()
    monkeypatch.setenv("SHOAL_SERVER", "http://127.0.0.1:1/")  # of other commands: a page is fetched in this process
    async with serving(ScriptedSite(fish)) as site:
        lines = f"print(page.title)\nprint(fetch('{site.url}/list.json').json())\nfetch('nothing')\n"
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        assert await run("shell", site.url) == 0
    told = capsys.readouterr()
    assert "Carp\n" in told.out
    assert "[1, 2]\n" in told.out
    assert "`page` is <shoal.Page 200" in told.err
    assert "InvalidInput" in told.err  # of the third line: the prompt goes on
    assert "IPython" not in told.err


@pytest.fixture
def without_ipython(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setitem(sys.modules, "IPython", None)
