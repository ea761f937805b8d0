"""The patterns of include and exclude: what they match, what they refuse, and that no URL makes them slow."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import InvalidInput
from shoal.base.url import Url
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.lifecycle.change import CrawlChange
from shoal.crawl.scope import CrawlScope
from shoal.crawl.url_patterns import MOST_CHARACTERS, UrlPatterns, check_patterns, matching

SEED = "http://example.org/"


def refusal(*patterns: str, field: str = "include") -> str:
    with pytest.raises(InvalidInput) as refused:
        CrawlConfig.read({"seeds": [SEED], field: list(patterns)})
    return str(refused.value)


@pytest.mark.parametrize("field", ["include", "exclude"])
def test_a_pattern_that_would_backtrack_judges_a_long_url_at_once(field: str) -> None:
    config = CrawlConfig.read({"seeds": [SEED], field: ["(a+)+$", "(a|a)*b$"]})
    url = Url(f"{SEED}{'a' * 2000}!")
    fate = {"include": Fate.SKIPPED_NOT_INCLUDED, "exclude": Fate.OPEN}[field]
    assert CrawlScope(config, [Url(SEED)]).judge(url, 1) is fate


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(?!a)b", "(invalid perl operator: (?!); remove the look-around, and put what must not match into exclude."),
        ("(?<=a)b", "remove the look-around"),
        (r"(a)\1", "remove back-references"),
        (r"a\Z", r"write \z for the end."),
        ("a++", "single repetition operator"),
        ("a{1001}", "keep repetitions at 1000 or below."),
    ],
)
def test_a_pattern_that_cannot_run_in_linear_time_is_refused_with_field_and_fix(pattern: str, said: str) -> None:
    for field in ("include", "exclude"):
        message = refusal("/fine/", pattern, field=field)
        assert message.startswith(f"{field} {pattern!r} is not a regular expression of RE2")
        assert said in message
    with pytest.raises(InvalidInput, match=r"^exclude .* is not a regular expression"):
        CrawlChange.read({"exclude": [pattern]})


@pytest.mark.parametrize(
    "patterns",
    [
        ["[\u0100-\U0001ffff]" * 198] * 6,
        [r"((a{0,1000}){0,1}){0,1}" * 40],
        ["(?:[ab]?){900}c"] * 6,
        [r"(?i)" + r"\PL{0}" * 60] * 2,  # compiles to nothing, but takes long to parse
    ],
)
def test_a_pattern_that_takes_too_long_to_compile_or_to_run_is_refused(patterns: list[str]) -> None:
    message = refusal(*patterns)
    assert message.startswith("include becomes too expensive with the pattern ")
    assert "shorten repetitions" in message


def test_patterns_have_a_length_in_all() -> None:
    check_patterns(["x" * 1000] * (MOST_CHARACTERS // 1000))
    assert f"has more than {MOST_CHARACTERS:,} characters in total" in refusal(*["x" * 1000] * 101)


def test_a_thousand_plain_texts_and_a_hundred_expressions_are_taken() -> None:
    texts = [f"/section-{number}/page" for number in range(900)]
    expressions = [rf"^https?://[^/]+/shop/{number}/.*\.html$" for number in range(100)]
    patterns = UrlPatterns(check_patterns([*texts, *expressions]))
    assert patterns.match("http://example.org/section-817/page?x")
    assert patterns.match("http://example.org/shop/99/a.html")
    assert not patterns.match("http://example.org/section-900/page")


@pytest.mark.parametrize(
    ("pattern", "url", "found"),
    [
        ("/private/", "http://h/private/x", True),
        ("/private/", "http://h/public/x", False),
        (r"\.pdf$", "http://h/a.pdf", True),
        (r"\.pdf$", "http://h/a.pdf?x", False),
        (r"\.pdf$", "http://h/apdf", False),
        ("^http://h/a", "http://h/ab", True),
        ("^http://h/a", "http://g/?http://h/a", False),
        ("^http://h/a$", "http://h/a", True),
        ("^http://h/a$", "http://h/ab", False),
        (r"\?page=", "http://h/?page=2", True),
        ("(?i)/ADMIN", "http://h/admin", True),
        ("[0-9]{4}", "http://h/2024/", True),
        ("a|b$", "http://h/b", True),
        ("", "http://h/", True),
        ("é", "http://h/%C3%A9", False),
    ],
)
def test_a_pattern_matches_anywhere_in_a_url_unless_anchored(pattern: str, url: str, found: bool) -> None:
    assert UrlPatterns([pattern]).match(url) is found
    assert UrlPatterns([pattern, *["/no-such-text/"] * 20]).match(url) is found
    assert matching([pattern, "/no-such-text/"], url) == [pattern] * found


PIECES = st.lists(
    st.sampled_from(["a", "b", "/", r"\.", r"\?", "[ab]", ".", "^", "$", "(?:a|b)", "-", "=", "a*", "b?"]),
    min_size=1,
    max_size=5,
).map("".join)


@given(st.lists(PIECES, min_size=1, max_size=12), st.text("ab/.?-=", max_size=8))
def test_url_patterns_match_the_same_urls_as_pythons_re(patterns: list[str], rest: str) -> None:
    url = f"http://h/{rest}"
    assert UrlPatterns(patterns).match(url) is any(re.search(pattern, url) for pattern in patterns)
