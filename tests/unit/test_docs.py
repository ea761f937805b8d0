"""Check the documentation: links resolve, every page is reachable, and guarantees are worded exactly."""

import re
from pathlib import Path

import pytest

from shoal.pages.page import RECORD_FIELDS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
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


def test_every_page_is_reachable_from_the_index() -> None:
    seen, todo = set(), [ROOT / "docs" / "index.md"]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        todo += [(page.parent / link.partition("#")[0]).resolve() for link in relative_links(page) if ".md" in link]
    assert set(PAGES) - seen == set()


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
    block = project.partition("\ndependencies = [")[2].partition("]")[0]
    names = re.findall(r'"([a-z0-9-]+)', block)
    reasons = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text("utf-8")
    assert names
    assert [name for name in names if f"| {name} |" not in reasons] == []
