"""The parts of the console: formats, search lines, charts."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from shoal.audit.verdict import REASONS
from shoal.base.clock import FakeClock
from shoal.base.errors import InvalidInput
from shoal.pages.pages import PageSummary
from shoal.pages.store import ChartFacts
from shoal.queue.job import Grant
from shoal.queue.states import JobState
from shoal.serve.console.charts import (
    Cell,
    Column,
    Part,
    Span,
    columns,
    over_time,
    scale_of,
    shares,
    sparkline,
    squarify,
    timeline,
    treemap,
)
from shoal.serve.console.crawl_rows import folder_cells
from shoal.serve.console.format import ENGLISH, NOTHING, SPACE, Formats, label_of, languages
from shoal.serve.console.forms import parse
from shoal.serve.console.jobs import held_by
from shoal.serve.console.shell import local_path
from shoal.serve.console.texts import gate_reason, page_error
from shoal.serve.stats import SHARE, Cached

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
FORMATS = Formats(ENGLISH, NOW)
FRENCH = Formats(languages()["fr"], NOW)


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ").replace("\u202f", " ")


def test_a_share_is_100_or_0_percent_only_if_it_is_all_or_nothing() -> None:
    shares = (None, 0.0, 0.0001, 0.04, 0.123, 0.994, 367 / 368, 0.99999, 1.0)
    words = [NOTHING, "0 %", "0.1 %", "4.0 %", "12 %", "99 %", "99.7 %", "99.9 %", "100 %"]
    assert [plain(FORMATS.percent(share)) for share in shares] == words


@pytest.mark.parametrize(
    ("reason", "french"),
    [
        ("a.b is 1.5; the gate demands <= 0.", "a.b vaut 1.5 ; le seuil exige <= 0."),
        ("The crawl has 2 pages; the gate needs 10.", "Le crawl a 2 pages ; le seuil en exige 10."),
        ('x was not measured: analyzer "y" {z}.', 'x n\'a pas été mesuré : analyzer "y" {z}.'),
        ("{one} of a plug-in", "{one} of a plug-in"),
    ],
)
def test_a_reason_of_a_verdict_is_translated(reason: str, french: str) -> None:
    assert gate_reason(reason, FORMATS) == reason
    assert gate_reason(reason, FRENCH) == french
    assert all(gate_reason(one.format_map(Same()), FRENCH) != one.format_map(Same()) for one in REASONS)


class Same(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return name


def test_a_url_is_broken_between_its_parts_and_stays_harmless() -> None:
    shown = FORMATS.url("https://a.example/amber-bay/?q=<b>&x=1")
    parts = ["https://a.example/", "amber-", "bay/?", "q=", "&lt;b&gt;&amp;", "x=", "1"]
    assert str(shown) == "<wbr>".join(parts)


def test_the_error_of_a_page_is_translated() -> None:
    loop = ("redirect_loop", "The redirects form a loop.")
    assert page_error(*loop, FORMATS) == loop[1]
    assert page_error(*loop, FRENCH) == "Les redirections forment une boucle."
    assert page_error("new_code", "Something else.", FRENCH) == "Something else."


def test_a_done_job_is_singular_in_french() -> None:
    assert FRENCH.language(label_of(JobState.DONE)) == "Faite"
    assert FRENCH.language("{count} skipped", count=1) == "ignorées : 1"


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (timedelta(days=1), "1 day"),
        (timedelta(days=90), "90 days"),
        (timedelta(hours=36), "36 h"),
        (timedelta(minutes=90), "1 h 30 min"),
        (timedelta(0), "0.0 s"),
    ],
)
def test_a_chosen_length_is_in_its_largest_unit(length: timedelta, words: str) -> None:
    assert plain(FORMATS.span(length)) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0.0 s"),
        (0.25, "0.2 s"),
        (9.99, "10.0 s"),
        (59.9, "59 s"),
        (61, "1 min 01 s"),
        (7260, "2 h 01 min"),
        (200_000, "2 days"),
        (None, NOTHING),
    ],
)
def test_durations_are_worded_for_people(seconds: float | None, words: str) -> None:
    assert plain(FORMATS.duration(seconds)) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-2, "just now"),
        (9.9, "just now"),
        (25, "20 s ago"),
        (119, "1 min ago"),
        (7200, "2 h ago"),
        (86400, "1 d ago"),
        (-30, "in 30 s"),
        (-90, "in 1 min"),
    ],
)
def test_times_are_worded_coarsely(seconds: float, words: str) -> None:
    assert plain(FORMATS.ago(NOW - round(seconds * SECOND))) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2_340_000, "2.3 MB"), (10**12, "1.0 TB"), (10**16, "10,000.0 TB")],
)
def test_sizes_are_worded_for_people(count: int, words: str) -> None:
    assert plain(FORMATS.size(count)) == words


def test_french_numbers_and_times() -> None:
    assert plain(FRENCH.size(1_234_567)) == "1,2 MB"
    assert plain(FRENCH.number(1_234_567)) == "1 234 567"
    assert plain(FRENCH.ago(NOW - 7200 * SECOND)) == "il y a 2 h"


def test_untrusted_text_is_one_short_visible_line() -> None:
    assert FORMATS.text("a\nb\u202e", 100) == "a␊b<U+202E>"
    assert FORMATS.text("x" * 1000, 10) == "xxxxxxxxxx…"
    assert FORMATS.text(None) == ""
    assert FORMATS.block("a\n\tb\u202e") == "a\n\tb<U+202E>"


def test_a_search_line_has_words_and_qualifiers() -> None:
    search = parse('state:running label:"team=a b" shoe https://example.com/', ("state", "label"))
    assert (search.one("state"), search.all("label")) == ("running", ["team=a b"])
    assert search.text == "shoe https://example.com/"
    assert search.with_value("state", None) == 'label:"team=a b" shoe https://example.com/'
    assert parse('it"s', ()).text == 'it"s'
    assert parse("state:", ("state",)).one("state") is None
    with pytest.raises(InvalidInput, match="the nearest one is state:"):
        parse("stat:x", ("state", "label"))
    with pytest.raises(InvalidInput, match="twice"):
        parse("state:a state:b", ("state",)).one("state")


@pytest.mark.parametrize("path", ["", "x", "//evil", "/\\evil", "https://evil", "/a\nb", "/" + "x" * 3000])
def test_only_a_path_of_this_server_is_returned_to(path: str) -> None:
    assert local_path(path) == "/"
    assert local_path("/crawls?q=a b") == "/crawls?q=a b"


async def test_a_figure_is_kept_for_longer_if_reading_it_takes_long() -> None:
    clock, reads = FakeClock(), []

    async def read() -> int:
        reads.append(clock.monotonic())
        clock.jump(0.1)
        return len(reads)

    figure = Cached(read, clock)
    assert [await figure.get(), await figure.get()] == [1, 1]
    clock.jump(0.1 / SHARE - 1)
    assert await figure.get() == 1
    clock.jump(2)
    assert await figure.get() == 2


def test_a_treemap_fills_its_space_in_proportion() -> None:
    values = [50.0, 25.0, 15.0, 9.0, 1.0]
    cells = squarify(values, 400, 200)
    assert [round(width * height) for _, _, width, height in cells] == [value * 800 for value in values]
    assert all(x >= -1e-6 and y >= -1e-6 and x + w <= 400.001 and y + h <= 200.001 for x, y, w, h in cells)
    assert squarify([], 10, 10) == []


def test_charts_escape_their_texts_and_survive_nothing() -> None:
    bad = '"><script>'
    drawn = columns([Column(bad, (Part("s2", 3, bad),))], bad, FORMATS) + shares([Part("s2", 1, bad)], bad)
    drawn += treemap([Cell(bad, 1, "", bad, "/x")], bad)
    assert "<script>" not in drawn
    assert "<svg" in columns([], "nothing", FORMATS) + shares([], "nothing") + treemap([], "nothing")


def test_a_folder_with_many_pages_is_divided_in_the_map() -> None:
    summary = PageSummary()
    paths = [f"shop/hats/{n}" for n in range(6)] + [f"shop/shoes/{n}" for n in range(5)] + ["blog/a", "docs/x/y", ""]
    for number, path in enumerate(paths):
        summary.add(ChartFacts(number + 1, f"https://example.com/{path}", 1, 200, None, 10, None))
    cells, rows = folder_cells(summary, FORMATS, lambda text: text)
    assert [(folder, pages) for _, folder, pages, _, _ in rows] == [
        *(("/shop/hats/", 6), ("/shop/shoes/", 5), ("/blog/", 1), ("/docs/", 1), ("/", 1)),
    ]
    assert cells[0].label == "/shop/hats/ 6"


def test_folders_are_labelled_with_the_part_that_differs() -> None:
    summary = PageSummary()
    for number, path in enumerate(["docs/hats/1", "docs/hats/2", "docs/shoes/1", "docs/shoes/2"]):
        summary.add(ChartFacts(number + 1, f"https://example.com/{path}", 1, 200, None, 10, None))
    cells, _ = folder_cells(summary, FORMATS, lambda text: text)
    assert [(cell.label, cell.short) for cell in cells] == [("…/hats/ 2", "hats/ 2"), ("…/shoes/ 2", "shoes/ 2")]
    assert ">hats/ 2<" in treemap([replace(cells[0], value=1.0), Cell("", 15.0)], "folders")


def test_the_node_and_the_process_of_a_lease_are_known_from_its_holder() -> None:
    def grant(holder: str, node: str | None = None, pid: int | None = None) -> Grant:
        return Grant(
            1, holder, 0, settled=False, ended_at=None, ended=None, error=None, node=node, pid=pid, config=None
        )

    assert held_by(grant("crawler-2/248/pages/25544")) == ("crawler-2", 25544)
    assert held_by(grant("crawler-2/248", "crawler-2", 300)) == ("crawler-2", 300)
    assert held_by(grant("bot/tok_1/scraper-9")) == ("scraper-9", None)


def test_one_spike_does_not_set_the_scale_of_a_chart() -> None:
    usual = [1.0 + number / 100 for number in range(60)]
    assert scale_of([]) == 1
    assert scale_of([0.3, 47]) == 50
    assert scale_of([*usual, 0, 0]) == 2
    assert scale_of([*usual, 900]) == 2
    assert scale_of([*usual, 4]) == 4  # not high enough to be one
    drawn = over_time([*usual, 900], 244.0, "rate", FORMATS)
    assert drawn.count('class="cut"') == 1
    labels = re.findall(r"<span>([^<]*)</span>", drawn.replace(SPACE, " "))
    assert labels == ["2", "1", "0", "4 min ago", "3 min ago", "2 min ago", "1 min ago", "now"]
    assert re.findall(r"<span>([^<]*)</span>", over_time([1.0], 0.0, "rate", FORMATS))[3:] == ["", "", "", "", "now"]
    assert min(float(y) for y in re.findall(r"[0-9],([0-9.]+)", sparkline([*usual, 900], "rate"))) == 1
    days = [Column(str(hour), (Part("s2", hour or 5000), Part("s4", hour))) for hour in range(24)]
    assert columns(days, "day", FORMATS).count('class="cut"') == 1


def test_a_timeline_has_its_times_and_a_row_for_each_node() -> None:
    spans = [Span(NOW - 90 * SECOND, NOW - 60 * SECOND, 0, "s5"), Span(NOW - 60 * SECOND, NOW, 1, "s2")]
    drawn = timeline(spans, "leases", FORMATS)
    assert re.findall(r'<rect class="(\w+)" x="([0-9.]+)" y="(\d+)" width="([0-9.]+)"', drawn) == [
        ("s5", "0.00", "2", "333.33"),
        ("s2", "333.33", "16", "666.67"),
    ]
    assert re.findall(r"<span>([^<]*)</span>", drawn) == [FORMATS.exact(NOW - 90 * SECOND), FORMATS.exact(NOW)]
