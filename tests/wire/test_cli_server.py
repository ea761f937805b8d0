"""Management commands: the same output with a server as with a store, and their errors."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from shoal.access.token import mint
from shoal.base.ids import CrawlId
from shoal.base.url import Url
from shoal.cli.crawls_files import stored
from shoal.cli.main import main
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.frontier.values import key_of
from shoal.extract.links import WrittenLink, WrittenLinks, pack_links
from shoal.pages.page import Page
from shoal.pages.store import PageStore
from tests.support.bad_http_server import bad_server, reply
from tests.support.controller import ServedController, served_controller
from tests.support.servers import free_port

TLS = Path(__file__).parents[1] / "support" / "tls"


@pytest.fixture(autouse=True)
def _another_store(bare_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that are not sent to the server use a store that is not the server's."""
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/elsewhere.db")


@pytest.fixture
async def shop(sqlite_url: str) -> AsyncIterator[ServedController]:
    async with served_controller(sqlite_url) as shop:
        yield shop


class Person:
    """A user who types commands, and the output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    async def types(self, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = await asyncio.to_thread(main, words)
        said = self._capsys.readouterr()
        return code, said.out, said.err

    async def told(self, *words: str) -> Any:
        code, out, err = await self.types(*words, "--json")
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
def person(capsys: pytest.CaptureFixture[str]) -> Person:
    return Person(capsys)


def at(shop: ServedController, token: str | None = None) -> list[str]:
    return ["--server", f"http://127.0.0.1:{shop.port}", *([] if token is None else ["--token", token])]


async def test_tokens_are_made_listed_shown_and_revoked_at_a_server(shop: ServedController, person: Person) -> None:
    boss = await shop.token("admin")
    code, out, err = await person.types(
        "tokens", "create", "--name", "ci", "--role", "operator", "--expires-in", "90d", *at(shop, boss)
    )
    assert (code, out.strip()[:4], "has the scope write." in err, "first" in err) == (0, "shl_", True, False)
    token_id = f"tok_{out.split('_')[1]}"
    listed = await person.told("tokens", "ls", *at(shop, boss))
    assert [token["id"] for token in listed["items"]] == [token_id, f"tok_{boss.split('_')[1]}"]
    assert (await person.told("tokens", "show", token_id, *at(shop, boss)))["state"] == "valid"
    assert (await person.types("tokens", "revoke", token_id, *at(shop, boss)))[1] == f"{token_id} (ci) is revoked.\n"
    assert (await shop.ask(token=out.strip())).status == 401
    _, log, _ = await person.types("tokens", "log", "--subject", token_id, *at(shop, boss))
    assert ["token.revoked" in line for line in log.splitlines()] == [False, True, False]


async def test_the_same_straight_on_the_store_needs_no_token(
    shop: ServedController, sqlite_url: str, person: Person
) -> None:
    made = await person.told("tokens", "create", "--name", "me", "--role", "admin", "--store", sqlite_url)
    assert (made["made_by"], made["scopes"]) == ("local", ["admin"])
    assert (await shop.ask(token=made["token"])).status == 200
    code, _, err = await person.types("tokens", "revoke", made["id"], "--store", sqlite_url)
    assert code == 7
    assert "is the last valid admin token" in err
    assert (await person.types("tokens", "revoke", made["id"], "--yes", "--store", sqlite_url))[0] == 0


async def test_creating_the_first_token_warns_that_authentication_is_now_required(person: Person) -> None:
    code, _, err = await person.types("tokens", "create", "--role", "bot", "--name", "spider")
    assert (code, "must be admin" in err) == (2, True)
    make = ("tokens", "create", "--role", "admin", "--name", "me")
    assert "from now on every request" in (await person.types(*make))[2]
    assert "from now on" not in (await person.types(*make))[2]


async def test_the_first_token_is_made_at_a_server_that_is_still_open(shop: ServedController, person: Person) -> None:
    code, out, err = await person.types("tokens", "create", "--role", "admin", "--name", "me", *at(shop))
    assert (code, out[:4], "from now on every request" in err) == (0, "shl_", True)
    assert (await shop.ask(token=out.strip())).status == 200


async def test_long_lists_come_over_several_pages(sqlite_url: str, person: Person, monkeypatch: Any) -> None:
    monkeypatch.setattr("shoal.cli.api_client.PAGE", 2)
    for name in ("a", "b", "c", "d", "e"):
        await person.told("tokens", "create", "--name", name, "--role", "admin", "--store", sqlite_url)
    listed = await person.told("tokens", "ls", "--limit", "4", "--store", sqlite_url)
    assert [token["name"] for token in listed["items"]] == ["e", "d", "c", "b"]
    assert listed["next"] is not None


async def test_server_and_token_may_come_from_settings_and_the_token_from_a_file(
    shop: ServedController, person: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{await shop.token('admin')}\n")
    monkeypatch.setenv("SHOAL_SERVER", f"http://127.0.0.1:{shop.port}/")
    monkeypatch.setenv("SHOAL_TOKEN_FILE", str(file))
    assert len((await person.told("tokens", "ls"))["items"]) == 1
    assert (await person.types("tokens", "ls", "--token", mint()[1]))[0] == 7
    assert (await person.types("tokens", "ls", "--store", f"sqlite:///{tmp_path}/shoal.db"))[0] == 0


async def test_a_crawl_is_made_at_a_server_and_a_url_of_it_explained_there(
    shop: ServedController, person: Person
) -> None:
    boss = at(shop, await shop.token("operator"))
    crawl_id = (await person.types("crawls", "add", "https://example.com/", "--project", "shop", *boss))[1].strip()
    assert (await person.told("crawls", "show", crawl_id, *boss))["project"] == "shop"
    said = await person.told("explain", "url", crawl_id, "https://example.com/#top", *boss)
    assert (said["crawl_id"], said["url"], said["state"]) == (crawl_id, "https://example.com/", "waiting")
    assert (await person.types("explain", "url", crawl_id, "no url at all", *boss))[0] == 2
    code, _, err = await person.types("explain", "url", "other", "https://example.com/", *boss)
    assert code == 5
    assert f'crawl "other" does not exist in http://127.0.0.1:{shop.port}' in err


async def test_a_policy_is_made_and_changed_in_part(shop: ServedController, sqlite_url: str, person: Person) -> None:
    given = ["--frequency", "6h", "--label", "team=a", "--set", 'crawl_config={"headers": {"X-Key": "sesame"}}']
    boss = await shop.token("admin")
    made = await person.told("policies", "add", "http://example.org/", *given, *at(shop, boss))
    change = ["--cron", "30 6 * * *", "--timezone", "Europe/Berlin", "--set", "jitter=5m"]
    changed = await person.told("policies", "set", made["id"], *change, "--store", sqlite_url)
    said = (changed["cron"], changed["frequency"], changed["timezone"], changed["jitter"])
    assert said == ("30 6 * * *", None, "Europe/Berlin", "5m")
    assert (changed["labels"], changed["crawl_config"]) == ({"team": "a"}, {"headers": {"X-Key": "***"}})
    code, _, err = await person.types("policies", "set", made["id"], *at(shop, boss))
    assert (code, "Nothing to change" in err) == (2, True)
    code, _, err = await person.types("policies", "set", made["id"], "--set", "not_after=soon", *at(shop, boss))
    assert (code, "give a time such as 2026-03-01T09:00:00Z" in err) == (2, True)


async def test_a_webhook_is_tested_at_a_server_and_straight_on_the_store(sqlite_url: str, person: Person) -> None:
    networks = {"SHOAL_ALLOW_NETWORKS": "127.0.0.0/8"}
    async with bad_server() as server, served_controller(sqlite_url, **networks) as shop:
        server.answer("/hook", reply(200, b""))
        url = f"http://127.0.0.1:{server.port}/hook"
        made = await person.told("webhooks", "add", url, *at(shop))
        code, out, _ = await person.types("webhooks", "test", made["id"], *at(shop))
        assert (code, out.startswith("Accepted with 200 after 0.")) == (0, True)
        server.answer("/hook", reply(500, b""))
        code, out, _ = await person.types("webhooks", "test", made["id"], *at(shop))
        assert (code, out.endswith("s: the endpoint returned an error (500).\n")) == (1, True)
        code, out, _ = await person.types("webhooks", "test", made["id"], "--json", "--store", sqlite_url)
        assert (code, json.loads(out)["delivered"]) == (1, False)  # the store's own settings do not allow loopback
        assert len(server.asked) == 2
        assert (await person.types("webhooks", "test", "whk_none", *at(shop)))[0] == 5


async def test_a_command_that_needs_a_store_is_refused_when_a_server_is_set(
    shop: ServedController, person: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABASE_URL")
    monkeypatch.setenv("SHOAL_SERVER", f"http://127.0.0.1:{shop.port}/")
    (tmp_path / "rules.json").write_text('{"fields": {"title": {"css": "title"}}}')
    code, _, err = await person.types("rules", "apply", "rules.json", "mine")
    assert code == 2
    assert "works on a store directly, but SHOAL_SERVER is set; choose the store with --store" in err


def answered(number: int, **more: Any) -> Page:
    url = f"https://example.com/{number}"
    return Page(url, depth=1, fetched_at=1_790_000_000_000_000 + number, attempt=1, **{"status": 200, **more})


@pytest.fixture
async def filled(shop: ServedController) -> ServedController:
    """A server with a crawl `mine` of seven pages, of which three went wrong."""
    crawl = await shop.app.crawls.submit(CrawlConfig(seeds=["https://example.com/"]), crawl_id=CrawlId("mine"))
    found = [answered(number, title=f"Page {number}", data={"price": 1.5}) for number in range(4)]
    found += [answered(4, status=404), answered(5, status=503)]
    found.append(answered(6, status=None, error_code="timeout", error_message="It took too long."))
    rows = [(number, number, page) for number, page in enumerate(found)]
    await shop.app.database.run(lambda tx: PageStore().insert(tx, crawl.number, rows))
    return shop


def content_of(name: str) -> bytes:
    return Path(name).read_bytes()


def names_in(folder: Path, pattern: str) -> list[str]:
    return [path.name for path in folder.glob(pattern)]


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
async def test_a_crawl_is_exported_from_a_server_as_it_is_from_its_store(
    filled: ServedController, sqlite_url: str, person: Person, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr("shoal.cli.crawls_files.PAGE", 3)
    viewer = at(filled, await filled.token())
    told = await person.told("crawls", "export", "mine", "--output", f"far{ending}", *viewer)
    assert told == {"crawl_id": "mine", "pages": 7, "outputs": [f"far{ending}"]}
    assert (await person.types("crawls", "export", "mine", "--output", f"near{ending}", "--store", sqlite_url))[0] == 0
    assert content_of(f"far{ending}") == content_of(f"near{ending}")


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".csv", ".parquet"])
async def test_links_are_exported_from_a_server_as_they_are_from_its_store(
    shop: ServedController, sqlite_url: str, person: Person, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    config = CrawlConfig(seeds=["https://example.com/"], links=True)
    crawl = await shop.app.crawls.submit(config, crawl_id=CrawlId("mine"))
    links = pack_links(WrittenLinks(None, [WrittenLink("a", f"/{number}", "text") for number in range(5)]))
    rows = [(*key_of(Url(page.url), crawl.key_seed), page) for page in (answered(1, outlinks=links), answered(4))]
    await shop.app.database.run(lambda tx: PageStore().insert(tx, crawl.number, rows))
    monkeypatch.setattr("shoal.cli.crawls_files.PAGE", 3)
    viewer = at(shop, await shop.token())
    told = await person.told("crawls", "export", "mine", "--links", f"far{ending}", *viewer)
    assert told == {"crawl_id": "mine", "pages": 0, "outputs": [f"far{ending}"], "links": 5}
    assert (await person.types("crawls", "export", "mine", "-o", f"links{ending}", "--store", sqlite_url))[0] == 0
    assert content_of(f"far{ending}") == content_of(f"links{ending}")
    known = await person.told("crawls", "export", "mine", "--links", f"far{ending}", "--status", "2xx", *viewer)
    assert known["links"] == 2


@pytest.mark.parametrize(
    ("words", "numbers"), [(["error"], [6]), (["4xx"], [4]), (["404", "5xx", "error"], [4, 5, 6]), (["301"], [])]
)
async def test_an_export_from_a_server_has_only_the_pages_that_are_wanted(
    filled: ServedController, person: Person, words: list[str], numbers: list[int]
) -> None:
    wanted = [part for word in words for part in ("--status", word)]
    code, out, err = await person.types("crawls", "export", "mine", "--output", "-", *wanted, *at(filled))
    assert code == 0
    assert [json.loads(line)["url"] for line in out.splitlines()] == [f"https://example.com/{one}" for one in numbers]
    assert "of mine written to stdout" in err


async def test_a_page_that_is_fetched_again_during_an_export_is_in_it_once(
    filled: ServedController, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.cli.crawls_files.PAGE", 7)
    crawl = (await filled.app.crawls.get("mine")).crawl
    again = [(100, 100, answered(5)), (101, 101, answered(7))]
    await filled.app.database.run(lambda tx: PageStore().insert(tx, crawl.number, again))
    _, out, _ = await person.types("crawls", "export", "mine", "--output", "-", *at(filled))
    urls = [json.loads(line)["url"] for line in out.splitlines()]
    assert urls == [f"https://example.com/{number}" for number in range(8)]


async def test_a_page_that_is_fetched_again_during_an_export_from_the_store_is_in_it_once(
    filled: ServedController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.cli.crawls_files.PAGES_AT_ONCE", 6)
    app, number = filled.app, (await filled.app.crawls.get("mine")).crawl.number
    reading = stored(app, number)
    first = await anext(reading)
    again = [(100, 100, answered(5))]
    await app.database.run(lambda tx: PageStore().insert(tx, number, again))
    urls = [page.url for pages in [first, *[pages async for pages in reading]] for page in pages]
    assert urls == [f"https://example.com/{one}" for one in range(7)]


@pytest.mark.parametrize("name", ["site.warc.gz", "site.md"])
async def test_a_format_made_from_bodies_is_not_exported_from_a_server(
    filled: ServedController, person: Person, name: str
) -> None:
    code, _, err = await person.types("crawls", "export", "mine", "--output", name, *at(filled))
    assert code == 2
    assert "is written from stored bodies, which a server does not send; use .jsonl, .json, .csv, .parquet or -" in err


async def test_an_export_of_a_crawl_that_is_not_there_leaves_no_file(
    shop: ServedController, person: Person, tmp_path: Path
) -> None:
    code, _, err = await person.types("crawls", "export", "other", "--output", "pages.csv", *at(shop))
    assert code == 5
    assert f'crawl "other" does not exist in http://127.0.0.1:{shop.port}' in err
    assert not names_in(tmp_path, "pages*")


async def test_crawls_are_managed_at_a_server_in_the_same_words(
    shop: ServedController, sqlite_url: str, person: Person
) -> None:
    boss = at(shop, await shop.token("admin"))
    ids = [
        (await shop.ask(token=boss[-1], method="POST", body=b'{"seeds": ["https://example.com/"]}')).json["id"]
        for _ in range(3)
    ]
    for words in (["ls"], ["ls", "--limit", "1"], ["ls", "--after", ids[1]], ["show", ids[0]]):
        for more in ([], ["--json"]):
            code, out, note = await person.types("crawls", *words, *more, *boss)
            here = await person.types("crawls", *words, *more, "--store", sqlite_url)
            assert (code, out, note.partition(" --server")[0]) == (*here[:2], here[2].partition(" --store")[0])
            assert code == 0
    assert (await person.types("crawls", "pause", ids[0], *boss))[1] == f"{ids[0]} is paused.\n"
    assert (await person.types("crawls", "resume", ids[0], *boss))[1] == f"{ids[0]} is queued.\n"
    assert (await person.told("crawls", "set", ids[0], "--max-pages", "7", *boss))["config"]["max_pages"] == 7
    assert (await person.told("crawls", "retry", ids[0], "--status", "5xx", *boss))["retried"] == 0
    assert (await person.types("crawls", "release", ids[0], "no pattern", *boss))[0] == 5
    assert (await person.types("crawls", "stop", ids[0], *boss))[1] == f"{ids[0]} is stopped.\n"
    code, _, err = await person.types("crawls", "resume", ids[0], *boss)
    assert code == 7
    assert "is stopped, so it cannot be resumed" in err
    assert (await person.types("crawls", "rm", ids[0], *boss))[1] == f"Removed {ids[0]}.\n"
    code, _, err = await person.types("crawls", "show", ids[0], *boss)
    assert (code, err) == (
        5,
        f'shoal: crawl "{ids[0]}" does not exist in http://127.0.0.1:{shop.port}; list them with `shoal crawls ls '
        f"--server http://127.0.0.1:{shop.port}`.\n",
    )


async def test_only_an_admin_removes_a_crawl_and_force_and_removal_are_in_the_audit_log(
    shop: ServedController, person: Person
) -> None:
    boss, operator = await shop.token("admin"), await shop.token("operator")
    made = await shop.ask(token=operator, method="POST", body=b'{"seeds": ["https://example.com/"]}')
    crawl_id = made.json["id"]
    assert (await person.types("crawls", "pause", crawl_id, *at(shop, operator)))[0] == 0
    assert (await person.types("crawls", "stop", crawl_id, "--force", *at(shop, operator)))[0] == 0
    assert (await person.types("crawls", "rm", crawl_id, *at(shop, operator)))[0] == 7
    assert (await person.types("crawls", "rm", crawl_id, *at(shop, boss)))[0] == 0
    log = (await person.told("tokens", "log", "--subject", crawl_id, *at(shop, boss)))["items"]
    assert [(entry["act"], entry["who"]) for entry in log] == [
        ("crawl.removed", f"tok_{boss.split('_')[1]}"),
        ("crawl.stopped_by_force", f"tok_{operator.split('_')[1]}"),
    ]


@pytest.mark.parametrize("token", [None, "shl_x", "unknown"])
async def test_a_rejected_caller_exits_with_7_and_gets_a_fix(
    shop: ServedController, person: Person, token: str | None
) -> None:
    await shop.token("admin")
    code, _, err = await person.types("tokens", "ls", *at(shop, mint()[1] if token == "unknown" else token))
    assert (code, err) == (
        7,
        "shoal: authentication is required; pass a valid token with --token-file, --token or SHOAL_TOKEN.\n",
    )


async def test_a_missing_scope_exits_with_7(shop: ServedController, person: Person) -> None:
    code, _, err = await person.types("tokens", "ls", *at(shop, await shop.token("operator")))
    assert code == 7
    assert "this needs the scope admin, but the token has write" in err


async def test_an_unknown_object_exits_with_5(shop: ServedController, person: Person) -> None:
    code, _, err = await person.types("tokens", "show", "tok_x", *at(shop, await shop.token("admin")))
    assert code == 5
    assert f'token "tok_x" does not exist in http://127.0.0.1:{shop.port}' in err


async def test_an_invalid_request_exits_with_2_and_names_the_field(shop: ServedController, person: Person) -> None:
    boss = await shop.token("admin")
    words = ["tokens", "create", "--name", "x", "--role", "bot", "--expires-in", "soon", *at(shop, boss)]
    code, _, err = await person.types(*words)
    assert (code, err) == (2, "shoal: --expires-in 'soon' is not a duration; write it as 30m, 12h or 7d.\n")
    _, _, err = await person.types(*words, "--json")
    assert json.loads(err)["field"] == "expires_in"


async def test_a_server_that_is_not_there_leaves_with_8(person: Person) -> None:
    server = f"http://127.0.0.1:{free_port()}"
    code, _, err = await person.types("tokens", "ls", "--server", server)
    assert code == 8
    assert f"{server} is not available (connect_error" in err


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<html>hi!", "is not JSON"),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 2\r\n\r\n{}", "status 302"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n[]", "status 500"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\n{}", "The server answered 503"),
    ],
)
async def test_a_server_that_is_not_a_shoal_server_leaves_with_8(person: Person, answer: bytes, says: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        Thread(target=_answer_once, args=(listener, answer), daemon=True).start()
        code, _, err = await person.types("tokens", "ls", "--server", f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert code == 8
    assert says in err


def _answer_once(listener: socket.socket, answer: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(answer)


async def test_a_server_with_a_certificate_that_proves_nothing_gets_no_token(sqlite_url: str, person: Person) -> None:
    name = str(TLS / "loopback_self_signed.pem")
    async with served_controller(sqlite_url, SHOAL_TLS_CERT=name, SHOAL_TLS_KEY=name) as shop:
        token = await shop.token("admin")
        code, _, err = await person.types(
            "tokens", "ls", "--server", f"https://127.0.0.1:{shop.port}", "--token", token
        )
        assert (code, "SSL_CERT_FILE" in err) == (8, True)
        assert "tls_self_signed" in err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--server", "http://127.0.0.1:1", "--store", "sqlite:////x"], 2, "--store and --server cannot be combined"),
        (["--server", "ftp://host"], 4, "--server"),
        (["--server", "http://"], 4, "--server is not an absolute http or https URL"),
        (
            ["--server", "http://127.0.0.1:1", "--token", "a b"],
            4,
            "--token contains a character that is not allowed in a token",
        ),
        (["--server", "http://127.0.0.1:1", "--token-file", "/nowhere"], 4, "--token-file names /nowhere"),
        (["--server", "http://127.0.0.1:1", "--token-file", "/"], 4, "--token-file names /, which cannot be read"),
    ],
)
async def test_flags_that_lead_nowhere_are_reported_by_name(
    person: Person, words: list[str], code: int, says: str
) -> None:
    found, _, err = await person.types("tokens", "ls", *words)
    assert found == code, err
    assert says in err


@pytest.mark.parametrize("token_id", ["..", ".", "", "a/b", "../tokens", "a?b", "a#b", "%2e%2e", "\x00", "ü"])
async def test_an_id_leads_to_no_other_path(
    shop: ServedController, sqlite_url: str, person: Person, token_id: str
) -> None:
    boss = await shop.token("admin")
    for words in (["--store", sqlite_url], at(shop, boss)):
        code, out, _ = await person.types("tokens", "show", token_id, *words)
        assert code in (2, 5)
        assert out == ""


async def test_policies_are_exported_for_their_owner_only_and_not_to_where_nothing_can_be(
    sqlite_url: str, tmp_path: Path, person: Person
) -> None:
    here = ["--store", sqlite_url]
    assert (await person.types("policies", "add", "https://shop.test/", "--frequency", "6h", *here))[0] == 0
    assert (await person.types("policies", "export", str(tmp_path / "all.csv"), *here))[0] == 0
    assert (tmp_path / "all.csv").stat().st_mode & 0o777 == 0o600
    code, _, err = await person.types("policies", "export", str(tmp_path / "none" / "all.csv"), *here)
    assert (code, "cannot be written (its folder does not exist); use a file in a folder" in err) == (4, True)
    code, _, err = await person.types("audit", "https://shop.test/", "--junit", str(tmp_path / "none" / "x.xml"), *here)
    assert (code, "--junit" in err, "--output" in err) == (4, True, False)
    code, _, err = await person.types("policies", "import", "none.csv", *here)
    assert (code, "none.csv cannot be read (no such file or directory)" in err) == (2, True)


async def test_a_bot_that_is_not_let_in_is_told_which_flag_to_give(shop: ServedController, person: Person) -> None:
    await shop.token("admin")
    code, _, err = await person.types("bot", "verify", *at(shop, "wrong"))
    assert (code, "pass a valid token with --token-file, --token or SHOAL_TOKEN" in err) == (7, True)


async def test_a_long_removal_goes_on_after_its_request_and_is_followed(
    shop: ServedController, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.serve.crawls.REMOVE_SECONDS", 0.0)  # every removal takes longer
    config = CrawlConfig.read({"seeds": ["https://example.com/"], "start": False})
    for crawl_id in ("followed", "left"):
        await shop.app.crawls.submit(config, crawl_id=CrawlId(crawl_id))
        await shop.app.crawls.stop(crawl_id)
    code, out, err = await person.types("crawls", "rm", "followed", "--server", f"http://127.0.0.1:{shop.port}")
    assert (code, out) == (0, "Removed followed.\n")
    assert "followed is being removed: " in err
    answer = await shop.ask("/api/v1/crawls/left", method="DELETE")
    assert (answer.status, answer.json["crawl_id"]) == (202, "left")
    monkeypatch.setattr("shoal.serve.crawls.REMOVE_SECONDS", 10.0)
    assert (await shop.ask("/api/v1/crawls/left", method="DELETE")).status in (204, 404)
    [entry] = await shop.app.access.audit_log.newest(subject="left")
    assert entry.action.name == "crawl.removed"
    code, _, err = await person.types("crawls", "rm", "left", "--server", f"http://127.0.0.1:{shop.port}")
    assert (code, "left" in err) == (5, True)
