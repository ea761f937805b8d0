"""The pages of the console over HTTP: what they show of crawls and pages, and what their forms change."""

import json
import re
from contextlib import suppress
from datetime import timedelta
from html import unescape

import pytest

from shoal.access.audit_log import no_audit
from shoal.base.database import Tx
from shoal.base.errors import NotFound
from shoal.base.ids import CrawlId
from shoal.base.url import Url
from shoal.crawl import journal_messages as messages
from shoal.crawl import states
from shoal.crawl.crawl import TRAP, Counts, Crawl, CrawlConfig
from shoal.crawl.frontier.fates import SKIPS, Fate
from shoal.crawl.frontier.values import key_of
from shoal.crawl.journal_messages import JournalEntry
from shoal.crawl.states import CrawlMove
from shoal.crawl.store import OUTSIDE
from shoal.extract.links import WrittenLink, WrittenLinks, pack_links
from shoal.hosts.robots import RobotsRecord, RobotsState
from shoal.hosts.store import HostStore
from shoal.pages.links import pack, pack_key
from shoal.serve.console import crawl_actions
from shoal.serve.console import crawl_pages as crawl_diff
from shoal.serve.console import crawls as crawls_module
from shoal.serve.console.format import COLOURS, LABELS
from tests.support.controller import ServedController
from tests.support.plain_browser import PlainBrowser
from tests.support.stored_pages import SITE, a_page, store_pages

SCRIPT = "<script>alert('x')</script>\"'><img src=x onerror=alert(1)>z{{7*7}}z${7*7}z"
FOOLING = "\u202egnp.exe\u2066\x00\x1b[31m\u200b\r\n"
HUGE = "x" * 1_000_000


async def submit(shop: ServedController, *seeds: str, crawl_id: str | None = None, **options: object) -> Crawl:
    config = CrawlConfig(seeds=list(seeds or (f"{SITE}/",)), **options)  # type: ignore[arg-type]
    return await shop.app.crawls.submit(config, crawl_id=CrawlId(crawl_id) if crawl_id else None)


async def move(shop: ServedController, crawl: Crawl, *moves: CrawlMove) -> None:
    for one in moves:
        assert await shop.app.database.run(lambda tx: shop.app.crawls.store.move(tx, crawl.id, one))  # noqa: B023


def test_every_state_has_a_badge_and_every_fate_a_reason() -> None:
    for kind, labels in LABELS.items():
        assert set(labels) == set(kind)
        assert set(COLOURS[kind]) <= set(kind)
    assert set(SKIPS) == {fate.word for fate in Fate if fate.skipped} | {TRAP}


# The list


async def test_an_empty_list_says_what_to_do_next(visitor: PlainBrowser) -> None:
    seen = await visitor.get("/crawls")
    assert "No crawls yet" in seen.text
    assert "./shoal crawls add https://example.com/" in seen.text
    assert f"curl http://127.0.0.1:{visitor.port}/api/v1/crawls" in seen.text


async def test_a_crawl_with_a_404_never_shows_only_zero_errors(shop: ServedController, visitor: PlainBrowser) -> None:
    crawl = await submit(shop)
    responses = {"2xx": 7, "3xx": 0, "4xx": 3, "5xx": 0, "none": 0}
    counts = Counts(opened=10, settled=10, pages=10, responses=responses)  # type: ignore[arg-type]
    await shop.app.database.run(lambda tx: shop.app.crawls.store.add_counts(tx, crawl.number, OUTSIDE, counts))
    seen = await visitor.get("/crawls")
    cells = dict(re.findall(r'data-label="([^"]+)">([^<]*)<', seen.html))
    assert (cells["2xx"], cells["4xx"], cells["No response"]) == ("7", "3", "0")


async def test_each_state_has_its_badge_and_its_reason(shop: ServedController, visitor: PlainBrowser) -> None:
    queued = await submit(shop)
    failed, paused = await submit(shop), await submit(shop)
    await move(shop, failed, states.run(), states.fail("no_seed_gave_a_page"))
    await move(shop, paused, states.run(), states.ask_to_pause(), states.pause("storage_full"))
    html = (await visitor.get("/crawls")).html
    rows = {one: html[html.index(f'data-id="{one}"') :][:3000] for one in (queued.id, failed.id, paused.id)}
    assert 'data-state="queued">In queue<' in rows[queued.id]
    assert "Waiting for a worker…" in rows[queued.id]
    assert 'data-state="failed">Failed<' in rows[failed.id]
    assert "no seed was requested" in rows[failed.id]
    assert "the storage is full" in rows[paused.id]


async def test_a_search_keeps_its_line_and_filters(shop: ServedController, visitor: PlainBrowser) -> None:
    await submit(shop, "https://one.example/", crawl_id="one", project="shop", labels={"team": "a b"})
    await submit(shop, "https://two.example/", crawl_id="two", start=False)

    async def found(line: str) -> set[str]:
        seen = await visitor.get(f"/crawls?q={line.replace(' ', '+').replace('=', '%3D')}")
        assert f'value="{line}"' in unescape(seen.html).replace("&#34;", '"') or '"' in line
        return set(re.findall(r'<tr data-id="(\w+)"', seen.html))

    assert await found("state:queued") == {"one"}
    assert await found("host:two.example") == {"two"}
    assert await found("project:shop one") == {"one"}
    assert await found('label:"team=a b"') == {"one"}
    assert await found("state:queued host:two.example") == set()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("status:running", "status: is not a qualifier of this list; the nearest one is state:."),
        ("state:runing", "state: cannot be 'runing'"),
        ("state:running+state:failed", "state: is given twice"),
        ("label:x", "'x' is not a label"),
    ],
)
async def test_a_search_that_cannot_be_is_a_sentence(visitor: PlainBrowser, line: str, words: str) -> None:
    seen = await visitor.get(f"/crawls?q={line}")
    assert seen.status == 200
    assert words in seen.text


async def test_older_crawls_are_on_further_pages(
    shop: ServedController, visitor: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crawls_module, "ROWS", 2)
    ids = [(await submit(shop)).id for _ in range(3)]
    first = await visitor.get("/crawls")
    further = re.search(r'rel="next" href="([^"]+)"', first.html)
    assert further
    assert ids[0] not in first.html
    assert ids[0] in (await visitor.get(unescape(further[1]))).html
    for after in ("", "x", "-1", "9" * 5000, "%D9%A1"):
        assert (await visitor.get(f"/crawls?after={after}")).status == 200


async def test_a_bulk_action_changes_everything_that_matches_after_a_question(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    chosen = [await submit(shop, project="shop") for _ in range(3)]
    other = await submit(shop)
    await visitor.get("/crawls")
    fields = {"action": "stop", "which": "matching", "q": "project:shop", "back": "/crawls?q=project:shop"}
    asked = await visitor.post("/crawls/actions", fields)
    assert "Stop 3 crawls permanently?" in asked.text
    assert (await shop.app.crawls.get(chosen[0].id)).crawl.state == "queued"
    done = await visitor.post("/crawls/actions", fields | {"confirmed": "yes"})
    assert "3 crawls are being stopped." in done.text
    assert {(await shop.app.crawls.get(one.id)).crawl.state for one in chosen} == {"stopped"}
    assert (await shop.app.crawls.get(other.id)).crawl.state == "queued"
    again = await visitor.post("/crawls/actions", [("action", "pause"), ("id", chosen[0].id), ("id", other.id)])
    assert "1 crawl is being paused. 1 crawl was skipped because of its state." in again.text


async def test_only_an_admin_removes_crawls(shop: ServedController, visitor: PlainBrowser) -> None:
    crawl = await submit(shop)
    await move(shop, crawl, states.stop())
    fields = {"action": "remove", "id": crawl.id, "confirmed": "yes"}
    await visitor.sign_in(await shop.token("operator"))
    assert "Remove" not in (await visitor.get("/crawls")).text
    assert (await visitor.post("/crawls/actions", fields)).status == 403
    await visitor.sign_in(await shop.token("admin"))
    assert "1 crawl was removed." in (await visitor.post("/crawls/actions", fields)).text
    assert (await visitor.get(f"/crawls/{crawl.id}")).status == 404


async def test_a_long_removal_goes_on_after_its_form_and_is_shown(
    shop: ServedController, visitor: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (crawls_module, crawl_actions):
        monkeypatch.setattr(module, "REMOVE_SECONDS", 0.0)  # every removal takes longer
    one, other = await submit(shop), await submit(shop)
    for crawl in (one, other):
        await move(shop, crawl, states.stop())
    await visitor.get("/crawls")
    turns = shop.app.crawl_removals._turns
    async with turns, turns:  # none is left for the two removals
        said = await visitor.post(f"/crawls/{one.id}/actions", {"action": "remove", "confirmed": "yes"})
        assert "The crawl is being removed." in said.text
        said = await visitor.post("/crawls/actions", {"action": "remove", "id": other.id, "confirmed": "yes"})
        assert "1 crawl is being removed." in said.text
        assert said.text.count("Being removed") == 2
        page = await visitor.get(f"/crawls/{one.id}")
        assert ("Being removed" in page.text, 'value="remove"' in page.html) == (True, False)
    for crawl in (one, other):
        with suppress(NotFound):  # it is gone already
            assert await shop.app.crawl_removals.remove(crawl.id, 10, no_audit) is None
        assert (await visitor.get(f"/crawls/{crawl.id}")).status == 404


# A crawl


async def test_limits_and_exclusions_are_changed_while_it_runs(shop: ServedController, visitor: PlainBrowser) -> None:
    crawl = await submit(shop, max_pages=10)
    await visitor.get(f"/crawls/{crawl.id}/options")
    fields = {"max_pages": "", "exclude": "/calendar/\n\n/old/", "depth": "7", "speed": "slow"}
    assert "The options were changed" in (await visitor.post(f"/crawls/{crawl.id}/options", fields)).text
    config = (await shop.app.crawls.get(crawl.id)).crawl.config
    assert (config.max_pages, config.exclude, config.depth, config.speed) == (None, ["/calendar/", "/old/"], 7, "slow")
    refused = await visitor.post(f"/crawls/{crawl.id}/options", {"max_pages": "many"})
    assert "max_pages cannot be 'many'" in refused.text


async def test_an_action_that_the_state_forbids_says_so(shop: ServedController, visitor: PlainBrowser) -> None:
    crawl = await submit(shop)
    await visitor.get(f"/crawls/{crawl.id}")
    seen = await visitor.post(f"/crawls/{crawl.id}/actions", {"action": "resume"})
    assert "queued" in seen.text
    assert 'role="alert"' in seen.html


async def test_failed_urls_are_retried_from_the_table(shop: ServedController, visitor: PlainBrowser) -> None:
    crawl = await submit(shop)
    await store_pages(shop.app, crawl, a_page(status=503), a_page("/b", status=404))
    await move(shop, crawl, states.run(), states.complete("drained"))
    seen = await visitor.get(f"/crawls/{crawl.id}/pages?status=5xx")
    assert "Retry these" in seen.text
    assert "Retry these" not in (await visitor.get(f"/crawls/{crawl.id}/pages?status=2xx")).text
    done = await visitor.post(f"/crawls/{crawl.id}/retry", {"status": "5xx"})
    assert "1 failed URL will be retried." in done.text


async def test_an_export_has_exactly_the_pages_that_are_shown(shop: ServedController, visitor: PlainBrowser) -> None:
    crawl = await submit(shop)
    await store_pages(shop.app, crawl, *[a_page(f"/{number}", status=200 + 204 * (number % 2)) for number in range(7)])
    shown = (await visitor.get(f"/crawls/{crawl.id}/pages?status=404")).html
    exported = (await visitor.get(f"/crawls/{crawl.id}/export/csv?status=404")).html.splitlines()
    urls = re.findall(rf"<small>({SITE}/\d)</small>", shown)
    assert urls == [f"{SITE}/{number}" for number in (1, 3, 5)]
    assert [line.split(",")[1].strip('"') for line in exported[1:]] == urls
    lines = (await visitor.get(f"/crawls/{crawl.id}/export/jsonl?text=/2")).html.splitlines()
    assert len(lines) == 1


async def test_a_url_is_explained(shop: ServedController, visitor: PlainBrowser) -> None:
    crawl = await submit(shop)
    seen = await visitor.get(f"/crawls/{crawl.id}/frontier?url=https://elsewhere.example/")
    assert "What happened to a URL?" in seen.text
    assert "Not found yet The crawl has not found it" in seen.text
    visitor.headers["Accept-Language"] = "fr"
    seen = await visitor.get(f"/crawls/{crawl.id}/frontier?url=https://elsewhere.example/")
    assert "Pas encore trouvée Le crawl ne l'a pas trouvée" in seen.text


async def test_a_page_shows_how_the_crawl_came_to_it_and_its_history(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    earlier, crawl = await submit(shop), await submit(shop)
    await store_pages(shop.app, earlier, a_page("/a", content_hash="one"))
    await store_pages(shop.app, crawl, a_page("/a", content_hash="two", depth=2, parent=f"{SITE}/b"), a_page("/"))
    await store_pages(shop.app, crawl, a_page("/b"), a_page("/alone", depth=1, parent=f"{SITE}/sitemap.xml"))
    pages = await visitor.get(f"/crawls/{crawl.id}/pages")
    first, second, _, alone = sorted({int(number) for number in re.findall(rf"{crawl.id}~(\d+)", pages.html)})
    orphan = await visitor.get(f"/pages/{crawl.id}~{alone}")
    assert "A sitemap lists it." in orphan.text
    assert "No page links to this URL" in orphan.text
    seen = await visitor.get(f"/pages/{crawl.id}~{first}")
    assert f"It was found by a link on {SITE}/b, at depth 2." in seen.text
    assert re.search(r"History .* this crawl 200 0.B the same .* ago 200 0.B different", seen.text)
    assert "It is a seed." in (await visitor.get(f"/pages/{crawl.id}~{second}")).text
    visitor.headers["Accept-Language"] = "fr"
    assert "à la profondeur 2" in (await visitor.get(f"/pages/{crawl.id}~{first}")).text


async def test_more_linking_pages_than_are_shown_are_not_counted(shop: ServedController, visitor: PlainBrowser) -> None:
    crawl = await submit(shop)
    links = pack([pack_key(key_of(Url(f"{SITE}/target"), crawl.key_seed)[0])], b"\x01")
    await store_pages(shop.app, crawl, a_page("/target"), *(a_page(f"/{number}", links=links) for number in range(51)))
    pages = await visitor.get(f"/crawls/{crawl.id}/pages")
    first = min(int(number) for number in re.findall(rf"{crawl.id}~(\d+)", pages.html))
    assert "50+ pages" in (await visitor.get(f"/pages/{crawl.id}~{first}")).text


async def test_a_crawl_is_compared_with_the_last_completed_one_of_the_same_seeds(
    shop: ServedController, visitor: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, failed, foreign, other, crawl = (
        await submit(shop),
        await submit(shop),
        await submit(shop, project="theirs"),
        await submit(shop, f"{SITE}/other"),
        await submit(shop),
    )
    for one in (good, foreign, other):
        await move(shop, one, states.run(), states.complete("drained"))
    await move(shop, failed, states.run(), states.fail("no_seed_gave_a_page"))
    await store_pages(shop.app, good, a_page("/"), a_page("/priced", data={"price": 129}))
    indexed = a_page("/", robots="noindex", canonical=f"{SITE}/c")
    await store_pages(shop.app, crawl, indexed, a_page("/priced", data={"price": 119}))
    seen = await visitor.get(f"/crawls/{crawl.id}/diff")
    assert re.search(rf'value="{good.id}" selected', seen.html)
    assert "Indexing rules changed 1" in seen.text
    assert "→ noindex" in seen.text
    assert f"→ {SITE}/c" in seen.text
    assert f"data.price 1 {SITE}/priced 129 → 119" in seen.text
    assert re.search(r"Failed · 0 pages · default", seen.text)
    assert re.search(r"Completed · 0 pages · theirs", seen.text)
    assert crawl.id not in options(seen.html)
    monkeypatch.setattr("shoal.pages.pages.MOST_FIELDS", 0)
    seen = await visitor.get(f"/crawls/{crawl.id}/diff")
    assert f"More fields of the extracted data changed 1 {SITE}/priced price" in seen.text
    seen = await visitor.get(f"/crawls/{failed.id}/diff")
    assert options(seen.html) == [good.id], "crawls that came later are not offered"


async def test_the_selected_crawl_is_always_the_one_that_is_compared(
    shop: ServedController, visitor: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crawl_diff, "MOST_CRAWLS", 2)
    base, *between = [await submit(shop) for _ in range(4)]
    await move(shop, base, states.stop())
    crawl = await submit(shop, recrawl_of=base.id)
    seen = await visitor.get(f"/crawls/{crawl.id}/diff")
    assert options(seen.html) == [base.id, between[2].id, between[1].id]
    assert re.search(rf'value="{base.id}" selected', seen.html)
    seen = await visitor.get(f"/crawls/{between[2].id}/diff")
    assert options(seen.html) == ["", between[1].id, between[0].id]
    assert '<option value="" selected>Choose a crawl</option>' in seen.html
    assert "Status changed" not in seen.text
    assert "There is no earlier crawl of this site." in (await visitor.get(f"/crawls/{base.id}/diff")).text


def options(html: str) -> list[str]:
    """Return the values of the crawls to compare with."""
    return re.findall(r'<option value="([^"]*)"', html.partition('<select id="with"')[2].partition("</select>")[0])


async def test_the_log_is_shown_in_the_language_of_the_reader(shop: ServedController, visitor: PlainBrowser) -> None:
    crawl = await submit(shop)
    counts = Counts(opened=3, settled=3, pages=2, errors=1)
    end = states.complete("max_pages")
    lines = [messages.found(1200), *messages.depths_finished(-1, 0), messages.moved(crawl, states.run(), None)]
    lines += [messages.moved(crawl, end, counts), messages.changed({"depth": 4})]
    await shop.app.database.run(lambda tx: shop.app.crawls.journal.write(tx, crawl.number, lines))
    seen = await visitor.get(f"/crawls/{crawl.id}/log")
    assert all(line.message in seen.text for line in lines)
    visitor.headers["Accept-Language"] = "fr"
    seen = await visitor.get(f"/crawls/{crawl.id}/log")
    for text in (
        "En attente d'un worker",
        "URL trouvées",
        "Profondeur 0 terminée",
        "Démarré",
        "Modifié : profondeur 4",
    ):
        assert text in seen.text
    assert "Terminé : 2 pages, 1 erreur, ignorées : 0 (la limite de pages est atteinte)" in seen.text


# Untrusted text


@pytest.mark.parametrize("text", [SCRIPT, FOOLING, HUGE], ids=["script", "fooling", "huge"])
async def test_foreign_text_stays_harmless_everywhere(shop: ServedController, visitor: PlainBrowser, text: str) -> None:
    agent = "Bot " + "".join(filter(str.isprintable, text))[:400]
    crawl = await submit(shop, f"{SITE}/?q={SCRIPT}", user_agent=agent)
    facts = {"title": text, "description": text, "h1": text, "canonical": text, "content_type": text, "robots": text}
    page = a_page(status=None, error_code="other", error_message=text, data={text[:50]: text}, parent=text, **facts)
    await store_pages(shop.app, crawl, page)
    entry = JournalEntry("urls_found", text)
    await shop.app.database.run(lambda tx: shop.app.crawls.journal.write(tx, crawl.number, [entry]))
    pages = await visitor.get(f"/crawls/{crawl.id}/pages")
    number = re.search(rf"{crawl.id}~(\d+)", pages.html)
    assert number
    paths = ["/", "/crawls", f"/pages/{crawl.id}~{number[1]}", "/crawls?q=%3Cscript%3E"]
    paths += [
        f"/crawls/{crawl.id}{tab}"
        for tab in ("", "/pages", "/links", "/broken", "/site", "/hosts", "/frontier", "/options")
    ]
    for path in paths:
        seen = await visitor.get(path)
        assert seen.status == 200, path
        assert len(seen.html) < 200_000, path
        assert "<script>alert" not in seen.html
        assert "<img src=x" not in seen.html
        assert "z49" not in seen.text, path
        assert not re.search("[\u202e\u2066\x00\x1b\u200b]", seen.html), path


async def test_an_address_of_a_page_is_never_followed_from_the_console(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    crawl = await submit(shop)
    bad = "javascript:alert(1)"
    await store_pages(
        shop.app, crawl, a_page(canonical=bad, parent=bad, redirects=[{"url": bad, "status": 301}], final_url=bad)
    )
    pages = await visitor.get(f"/crawls/{crawl.id}/pages")
    number = re.search(rf"{crawl.id}~(\d+)", pages.html)
    assert number
    for path in (f"/pages/{crawl.id}~{number[1]}", f"/crawls/{crawl.id}", f"/crawls/{crawl.id}/broken"):
        links = re.findall(r'(?:href|src|action)="([^"]*)"', (await visitor.get(path)).html)
        assert links
        assert [link for link in links if not link.startswith(("/", "#"))] == []


async def test_secrets_in_addresses_are_not_shown(shop: ServedController, visitor: PlainBrowser) -> None:
    secret = "tellnobody123"
    crawl = await submit(shop, f"{SITE}/?api_key={secret}", headers={"Authorization": f"Bearer {secret}"})
    await store_pages(
        shop.app, crawl, a_page(f"/?token={secret}", title=f"password={secret}", error_message=f"token={secret}")
    )
    for path in ("/", "/crawls", f"/crawls/{crawl.id}", f"/crawls/{crawl.id}/pages", f"/crawls/{crawl.id}/options"):
        seen = await visitor.get(path)
        assert secret not in seen.text, path
    assert "***" in (await visitor.get("/crawls")).text


@pytest.mark.parametrize("path", ["/crawls/none", "/crawls/none/pages", "/pages/none~1", "/pages/x", "/crawls/%00"])
async def test_a_page_that_does_not_exist_is_answered_with_html(visitor: PlainBrowser, path: str) -> None:
    seen = await visitor.get(path)
    assert seen.status == 404
    assert seen.headers["content-type"].startswith("text/html")


async def test_the_form_names_the_line_of_an_invalid_seed(visitor: PlainBrowser) -> None:
    await visitor.get("/crawls/new")
    seen = await visitor.post("/crawls/new", {"seeds": "https://example.com/\n\nhttps://[/"})
    assert (seen.status, "Line 3 " in seen.text, "seeds[" in seen.text) == (422, True, False)


async def test_the_links_of_a_crawl_are_listed_filtered_and_downloaded(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    crawl = await submit(shop, links=True)
    found = WrittenLinks(None, [WrittenLink("a", "/gone", SCRIPT), WrittenLink("img", "/cup.png", "=cup")])
    sources = [a_page(f"/{number}", outlinks=pack_links(found)) for number in range(60)]
    await store_pages(shop.app, crawl, *sources, a_page("/gone", status=404))
    path = f"/crawls/{crawl.id}/links"
    seen = await visitor.get(path)
    assert (seen.text.count("/cup.png"), "not fetched" in seen.text) == (50, True)
    assert "<script>alert" not in seen.html
    following = re.search(rf'href="{path}\?(after=[^"]+)"', seen.html)
    assert following is not None
    assert (await visitor.get(f"{path}?{following[1]}")).text.count("/cup.png") == 10
    lines = (await visitor.get(f"{path}/csv?status=4xx")).html.splitlines()
    assert lines[0] == '"from","to","text","rel","nofollow","kind","status","error"'
    assert len(lines) == 61
    assert len((await visitor.get(f"{path}/jsonl?kind=img&to={SITE}/cup.png")).html.splitlines()) == 60
    assert "No link matches" in (await visitor.get(f"{path}?status=500")).text
    for wrong in ("status=many", "to=nowhere", "from=ftp://example.org/"):
        assert 'role="alert"' in (await visitor.get(f"{path}?{wrong}")).html


async def test_a_crawl_without_texts_of_links_says_so_and_lists_every_page_that_links_to_a_url(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    crawl = await submit(shop)
    links = pack([pack_key(key_of(Url(f"{SITE}/gone"), crawl.key_seed)[0])], b"\x01")
    linking = [a_page(f"/{number}", links=links) for number in range(51)]
    await store_pages(shop.app, crawl, a_page("/gone", status=404, parent=f"{SITE}/0"), *linking)
    path = f"/crawls/{crawl.id}/links"
    assert "This crawl did not store its links with their texts." in (await visitor.get(path)).text
    assert f"{path}?to=" in (await visitor.get(f"/crawls/{crawl.id}/broken")).html
    seen = await visitor.get(f"{path}?to={SITE}/gone")
    assert all(f"{SITE}/{number} " in seen.text for number in range(51))
    assert len((await visitor.get(f"{path}/csv?to={SITE}/gone")).html.splitlines()) == 52


async def test_a_reason_for_skipping_leads_to_the_urls_with_their_sources_and_the_rule(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    crawl = await submit(shop, links=True, exclude=["/private"])
    paths = ("/private/1", "/cart", "mailto:me@example.org", "/later", "/gone")
    links = [WrittenLink("a", path, "x") for path in paths]
    sources = [a_page(f"/{name}", outlinks=pack_links(WrittenLinks(None, links))) for name in ("menu", "other")]
    await store_pages(shop.app, crawl, *sources, a_page("/gone", status=404))
    fates = {
        f"{SITE}/private/1": Fate.SKIPPED_EXCLUDED,
        f"{SITE}/cart": Fate.SKIPPED_ROBOTS,
        "mailto:me@example.org": Fate.SKIPPED_SCHEME,
        f"{SITE}/later": Fate.OPEN,
    }
    rows = sorted((*key_of(Url(url), crawl.key_seed), crawl.number, int(fate)) for url, fate in fates.items())
    skipped = Counts(skipped={"excluded": 1, "scheme": 1})

    async def keep(tx: Tx) -> None:
        await tx.many("keep_fates", rows)
        robots = RobotsRecord(RobotsState.FOUND, "User-agent: *\nDisallow: /cart")
        await HostStore().keep_robots(tx, SITE, robots, timedelta(0))
        await shop.app.crawls.store.add_counts(tx, crawl.number, OUTSIDE, skipped)

    await shop.app.database.run(keep)
    path = f"/crawls/{crawl.id}/links"
    frontier = await visitor.get(f"/crawls/{crawl.id}/frontier")
    assert f'href="{path}?skipped=excluded"' in frontier.html
    assert "listed only if" not in frontier.text
    seen = await visitor.get(f"{path}?skipped=excluded")
    row = f"{SITE}/menu {SITE}/private/1 All pages that link to this URL x a It matches the exclude pattern `/private`."
    assert (row in seen.text, seen.text.count("It matches")) == (True, 1)
    assert "mailto:" not in seen.text
    forbidden = await visitor.get(f"{path}?skipped=robots")
    assert (
        f"{SITE}/cart All pages that link to this URL x a Line 2 of the robots.txt forbids it: Disallow: /cart"
        in forbidden.text
    )
    lines = (await visitor.get(f"{path}/jsonl?skipped=scheme")).html.splitlines()
    assert [json.loads(line)["to"] for line in lines] == ["mailto:me@example.org"] * 2
    asked = await shop.ask(f"/api/v1{path}?skipped=excluded")
    assert [one["to"] for one in asked.json["items"]] == [f"{SITE}/private/1"] * 2
    assert 'role="alert"' in (await visitor.get(f"{path}?skipped=because")).html
    plain = await submit(shop)
    told = await visitor.get(f"/crawls/{plain.id}/links?skipped=excluded")
    assert "This crawl did not store the URLs of links" in told.text
    await shop.app.database.run(lambda tx: shop.app.crawls.store.add_counts(tx, plain.number, OUTSIDE, skipped))
    told = await visitor.get(f"/crawls/{plain.id}/frontier")
    assert "The URLs and the pages that link to them are listed only if the crawl stores its links." in told.text


async def test_pages_are_sorted_by_their_numbers_and_by_the_pages_that_link_to_them(
    shop: ServedController, visitor: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crawl_diff, "ROWS", 2)
    crawl = await submit(shop)
    to_b = pack([pack_key(key_of(Url(f"{SITE}/b"), crawl.key_seed)[0])], b"\x01")
    words = {"/a": 5, "/b": 9, "/c": None, "/d": 7}
    pages = [a_page(path, word_count=count, links=to_b) for path, count in words.items()]
    await store_pages(shop.app, crawl, *pages)

    async def order(query: str) -> list[str]:
        seen = await visitor.get(f"/crawls/{crawl.id}/pages?{query}")
        return re.findall(rf"<small>{SITE}(/\w)</small>", seen.html)

    assert [*await order("sort=-words"), *await order("sort=-words&after=2")] == ["/b", "/d", "/a", "/c"]
    assert await order("sort=words") == ["/a", "/d"]
    assert await order("sort=-words&text=/c") == ["/c"]
    assert await order("sort=-nothing") == ["/a", "/b"]
    assert 'aria-sort="descending"' in (await visitor.get(f"/crawls/{crawl.id}/pages?sort=-words")).html
    await move(shop, crawl, states.run(), states.complete("drained"))
    linked = await visitor.get(f"/crawls/{crawl.id}/pages?sort=-linked")
    assert re.search(rf"{SITE}/b 200 0 .*? 9 0 3 ", linked.text), linked.text


async def test_a_url_leads_to_its_page_or_to_what_became_of_it(shop: ServedController, visitor: PlainBrowser) -> None:
    crawl = await submit(shop)
    await store_pages(shop.app, crawl, a_page("/a", title="Tea"))
    assert "Tea" in (await visitor.get(f"/crawls/{crawl.id}/page?url={SITE}/a")).text
    for unknown in (f"{SITE}/none", "nowhere", ""):
        seen = await visitor.get(f"/crawls/{crawl.id}/page?url={unknown}")
        assert "What happened to a URL?" in seen.text


async def test_every_list_is_downloaded_as_the_api_has_it(shop: ServedController, visitor: PlainBrowser) -> None:
    crawl = await submit(shop, f"{SITE}/")
    await submit(shop, "https://other.example/", project="shop")
    listed = (await visitor.get("/crawls.jsonl?q=project:default")).html.splitlines()
    assert [json.loads(line)["id"] for line in listed] == [crawl.id]
    table = (await visitor.get("/crawls.csv")).html.splitlines()
    assert table[0].startswith('"id","state","state_reason","seeds"')
    assert len(table) == 3
    for path in ("/jobs", "/policies", "/analyses", "/fleet", f"/crawls/{crawl.id}/hosts", f"/crawls/{crawl.id}/site"):
        assert (await visitor.get(f"{path}.csv")).html.startswith('"')
    assert (await visitor.get("/crawls.exe")).status == 404


async def test_a_time_that_is_left_is_told_only_if_it_can_be_computed(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    crawl = await submit(shop, max_pages=150)
    counts = Counts(opened=1000, settled=100, pages=100, walked=timedelta(seconds=50))
    await shop.app.database.run(lambda tx: shop.app.crawls.store.add_counts(tx, crawl.number, OUTSIDE, counts))
    assert "at this rate" not in (await visitor.get(f"/crawls/{crawl.id}")).text
    await move(shop, crawl, states.run())
    seen = await visitor.get(f"/crawls/{crawl.id}")
    assert "at this rate, the known URLs take about 30\N{NO-BREAK SPACE}s" in unescape(seen.html)
