"""Check the documentation: links resolve, every page is reachable, and guarantees are worded exactly."""

import re
from pathlib import Path

import pytest

from shoal.pages.page import RECORD_FIELDS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
PEERS = {  # names in the text: names in the benchmark
    "Crawlee for Python (HTTP)": "crawlee-py-http",
    "Crawlee for Python (parsel)": "crawlee-py-parsel",
    "Scrapy (uvloop)": "scrapy-uvloop",
}
PROMISE = "At-least-once start, at most one accepted finish per lease, results idempotent."


def prose(page: Path) -> str:
    """Return the text without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def relative_links(page: Path) -> list[str]:
    return [link for link in LINK.findall(prose(page)) if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_relative_link_resolves() -> None:
    for page in PAGES:
        for link in relative_links(page):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.name} links to {link}"
            assert ROOT in target.parents, f"{page.name} links outside the project: {link}"
            assert not anchor or anchor in anchors(target), f"{page.name} links to a missing heading: {link}"


def test_every_page_is_within_three_clicks_of_the_start() -> None:
    clicks, last = {ROOT / "docs" / "index.md"}, [ROOT / "docs" / "index.md"]
    for _ in range(3):
        linked = [(page.parent / link.partition("#")[0]).resolve() for page in last for link in relative_links(page)]
        last = list({page for page in linked if page.suffix == ".md"} - clicks)
        clicks.update(last)
    assert set(PAGES) - clicks == {ROOT / "README.md"}  # the start of the repository


def test_the_site_has_every_page_in_its_navigation() -> None:
    """`make docs` checks this, too, and takes longer."""
    named = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), flags=re.MULTILINE)
    pages = [ROOT / ("" if name.isupper() or name[:-3].isupper() else "docs") / name for name in named]
    assert set(PAGES) - set(pages) == {ROOT / "README.md"}
    assert sorted(set(pages)) == sorted(pages)


@pytest.mark.parametrize("name", ["README.md", "docs/comparison.md"])
def test_figures_beside_peers_are_those_of_the_benchmark(name: str) -> None:
    measured = {}
    text = (ROOT / "docs" / "benchmarks.md").read_text("utf-8").partition("compared with other crawlers")[2]
    for row in text.splitlines():
        if len(cells := [cell.strip() for cell in row.strip("|").split("|")]) == 8:
            measured[cells[0]] = [cells[3], cells[1], cells[4]]
        elif row.startswith("###"):
            break
    rows = re.findall(
        r"^\| \**([\w ().]+?)\** \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \|", prose(ROOT / name), re.MULTILINE
    )
    shown = {PEERS.get(crawler, crawler.lower()): figures for crawler, *figures in rows}
    assert {"shoal", "scrapy-uvloop", "wget2"} <= shown.keys()
    assert shown.items() <= measured.items()


def test_every_link_for_agents_resolves() -> None:
    links = LINK.findall((ROOT / "llms.txt").read_text("utf-8"))
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).is_file()] == []


@pytest.mark.parametrize("name", ["README.md", "docs/architecture.md"])
def test_the_guarantee_is_worded_exactly(name: str) -> None:
    assert PROMISE in (ROOT / name).read_text("utf-8")


def test_the_record_reference_lists_every_field() -> None:
    text = (ROOT / "docs" / "reference" / "record.md").read_text("utf-8")
    cells = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    named = re.findall(r"`(\w+)`", "".join(cells))
    assert sorted(named) == sorted(RECORD_FIELDS)


def test_every_runtime_dependency_has_a_documented_reason() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    block = project.partition("\ndependencies = [")[2].partition("\nall = [")[0]
    names = re.findall(r'"([a-z0-9-]+)[>;]', block)
    reasons = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text("utf-8")
    assert names
    assert [name for name in names if f"| {name} |" not in reasons] == []
