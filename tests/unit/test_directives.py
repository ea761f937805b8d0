"""Robots directives in the head of a page and in its response headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.extract.page import combined, forbids_following, of_headers


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["noindex"], "noindex"),
        (["NoIndex, NOFOLLOW"], "NoIndex, NOFOLLOW"),
        (["noindex", "nofollow"], "noindex, nofollow"),
        (["shoal: nofollow"], "nofollow"),
        (["SHOAL : nofollow, noarchive"], "nofollow, noarchive"),
        (["googlebot: nofollow, noindex"], ""),
        (["googlebot: nofollow", "noindex"], "noindex"),
        (["googlebot: nofollow, shoal: none"], "none"),
        (["noindex, googlebot: nofollow"], "noindex"),
        (["unavailable_after: 25 Jun 2030 15:00:00 PST"], "unavailable_after: 25 Jun 2030 15:00:00 PST"),
        (["max-snippet: 20, max-image-preview:none"], "max-snippet: 20, max-image-preview:none"),
        (["", " , ,"], ""),
        (["shoal:"], ""),
    ],
)
def test_a_header_is_for_everybody_or_for_the_agent_it_names(values: list[str], said: str) -> None:
    assert of_headers(values, "Shoal") == said


@pytest.mark.parametrize(
    ("robots", "forbids"),
    [
        ("nofollow", True),
        ("none", True),
        ("index, NoFollow", True),
        ("noindex nofollow", True),
        ("follow, nofollow", True),
        ("noindex", False),
        ("all", False),
        ("", False),
        ("max-image-preview:none", False),
        ("max-image-preview: none", False),
        ("nofollowing", False),
    ],
)
def test_links_are_followed_unless_the_strictest_directive_forbids_it(robots: str, forbids: bool) -> None:
    assert forbids_following(robots) is forbids


@pytest.mark.parametrize(
    ("meta", "header", "both"),
    [
        (None, "noindex", "noindex"),
        ("index, follow", "noindex", "index, follow, noindex"),
        ("noindex", "NOINDEX, nofollow", "noindex, nofollow"),
    ],
)
def test_meta_and_header_directives_are_reported_together(meta: str | None, header: str, both: str) -> None:
    assert combined(meta, header) == both


@given(st.lists(st.text(max_size=60), max_size=4), st.text(max_size=40))
def test_no_text_raises_an_error(values: list[str], meta: str) -> None:
    forbids_following(combined(meta or None, of_headers(values, "shoal")))
