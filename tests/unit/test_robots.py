"""robots.txt according to RFC 9309: a table of files and URLs, with what may be fetched. See also
`test_robots_cache`."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.url import Url
from shoal.hosts.robots import (
    MAX_BYTES,
    MOST_SITEMAPS,
    RobotsFile,
    RobotsRecord,
    RobotsState,
    Rules,
    product_token,
    readable,
)

SITE = "https://example.org"
LONGEST = timedelta(seconds=30)

RFC_SIMPLE = """
User-Agent: *
Disallow: *.gif$
Disallow: /example/
Allow: /publications/

User-Agent: foobot
Disallow:/
Allow:/example/page.html
Allow:/example/allowed.gif

User-Agent: barbot
User-Agent: bazbot
Disallow: /example/page.html

User-Agent: quxbot
"""

RFC_LONGEST = """
User-Agent: foobot
Allow: /example/page/
Disallow: /example/page/disallowed.gif
"""

RFC_MERGED = """
user-agent: ExampleBot
disallow: /foo
disallow: /bar

user-agent: ExampleBot
disallow: /baz
"""


def rules(text: str | bytes, agent: str = "foobot", state: RobotsState = RobotsState.FOUND) -> Rules:
    body = readable(text if isinstance(text, bytes) else text.encode())
    return Rules(RobotsRecord(state, body), agent, LONGEST)


def allowed(text: str | bytes, path: str, agent: str = "foobot") -> bool:
    given = rules(text, agent)
    decision = given.decide(Url(SITE + path))
    assert decision.allowed is given.allows(Url(SITE + path))
    return decision.allowed


def group(*lines: str) -> str:
    return "\n".join(["User-agent: foobot", *lines])


@pytest.mark.parametrize(
    ("agent", "path", "may"),
    [
        ("foobot", "/example/page.html", True),
        ("foobot", "/example/allowed.gif", True),
        ("foobot", "/example/other.gif", False),
        ("foobot", "/", False),
        ("barbot", "/example/page.html", False),
        ("bazbot", "/example/page.html", False),
        ("bazbot", "/example/else.gif", True),
        ("quxbot", "/example/", True),  # its own group is empty, so the rules of `*` do not apply
        ("quxbot", "/x.gif", True),
        ("other", "/x.gif", False),
        ("other", "/x.gif?size=2", True),
        ("other", "/example/page.html", False),
        ("other", "/publications/x", True),
    ],
)
def test_the_simple_example_of_the_rfc(agent: str, path: str, may: bool) -> None:
    assert allowed(RFC_SIMPLE, path, agent) is may


@pytest.mark.parametrize(
    ("path", "may"), [("/example/page/", True), ("/example/page/disallowed.gif", False), ("/example/page/x.gif", True)]
)
def test_the_longest_match_example_of_the_rfc(path: str, may: bool) -> None:
    assert allowed(RFC_LONGEST, path) is may


@pytest.mark.parametrize("path", ["/foo", "/bar", "/baz"])
def test_groups_of_one_agent_count_as_one(path: str) -> None:
    assert not allowed(RFC_MERGED, path, "ExampleBot")
    assert allowed(RFC_MERGED, path, "foobot")


@pytest.mark.parametrize(
    ("rule", "matching", "other"),
    [
        ("/", ["/", "/a", "/?q"], []),
        ("/fish", ["/fish", "/fish.html", "/fish/salmon", "/fishheads", "/fish?id=1"], ["/Fish", "/catfish", "/?fish"]),
        ("/fish*", ["/fish", "/fish.html", "/fishheads/x"], ["/Fish", "/catfish"]),
        ("/fish/", ["/fish/", "/fish/?id=1", "/fish/x"], ["/fish", "/fish.html", "/Fish/x"]),
        ("/*.php", ["/a.php", "/b/a.php", "/a.php?x", "/a.php/", "/?f=a.php"], ["/php", "/a?php", "/a.PHP"]),
        ("/*.php$", ["/a.php", "/b/a.php"], ["/a.php?x", "/a.php/", "/a.php5", "/aphp"]),
        ("/fish*.php", ["/fish.php", "/fishheads/cat.php?x"], ["/Fish.PHP", "/afish.php"]),
        ("/$", ["/"], ["/a", "/?q"]),
        ("*", ["/", "/a"], []),
        ("*.gif$", ["/a.gif", "/a/b.gif"], ["/a.gif?x"]),
        ("/a*b*c", ["/abc", "/a-b-c-d"], ["/acb"]),
        ("/a**b", ["/ab", "/a/b"], ["/a"]),
        ("/a$b", ["/a$b", "/a%24bc"], ["/a"]),  # only a final $ is special
        ("/?", ["/?x", "/?"], ["/", "/a?x"]),
        ("/a?b=http://x.org/?c", ["/a?b=http://x.org/?c&d"], ["/a?b=http:/"]),
        ("/a:b;c,d@e!f(g)", ["/a:b;c,d@e!f(g)"], ["/a"]),
        ("a", [], ["/a", "/"]),  # no path starts without a slash
        ("https://example.org/a", [], ["/a"]),
    ],
)
def test_wildcards_in_paths_match(rule: str, matching: list[str], other: list[str]) -> None:
    text = group(f"Disallow: {rule}")
    assert [path for path in matching if allowed(text, path)] == []
    assert [path for path in other if not allowed(text, path)] == []


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        ("/foo/bar/ツ", "/foo/bar/%E3%83%84"),
        ("/foo/bar/%E3%83%84", "/foo/bar/%E3%83%84"),
        ("/foo/bar/%e3%83%84", "/foo/bar/%E3%83%84"),
        ("/foo/bar/%62%61%7A", "/foo/bar/baz"),  # an escaped letter is that letter (RFC 9309, 2.2.2)
        ("/foo/bar/baz", "/foo/bar/%62%61%7A"),
        ("/foo/bar?baz=https://foo.bar", "/foo/bar?baz=https://foo.bar"),
        ("/file-with-a-%2A.html", "/file-with-a-*.html"),
        ("/path/foo-%24", "/path/foo-$"),
        ("/a b", "/a%20b"),
        ("/a%20b", "/a%20b"),
        ("/100%", "/100%"),
    ],
)
def test_percent_encoding_makes_no_difference(rule: str, path: str) -> None:
    assert not allowed(group(f"Disallow: {rule}"), path)


@pytest.mark.parametrize(("rule", "path"), [("/a%2Fb", "/a/b"), ("/a/b", "/a%2Fb"), ("/a-%2A", "/a-x")])
def test_an_escaped_sign_is_not_the_sign(rule: str, path: str) -> None:
    assert allowed(group(f"Disallow: {rule}"), path)


@pytest.mark.parametrize("path", ["/@user", "/a,b", "/a:b;c", "/(x)!*'", "/~x-._", "/%41%2Dz", "/?a=b&c=[d]"])
def test_a_percent_sign_in_a_rule_means_one_that_stands_in_the_url(path: str) -> None:
    assert allowed(group("Disallow: /*%"), path)


@pytest.mark.parametrize("path", ["/100%25", "/caf%C3%A9", "/a%2Cb", "/x?q=%20", "/%"])
def test_a_rule_with_a_percent_sign_matches_what_is_escaped(path: str) -> None:
    assert not allowed(group("Disallow: /*%"), path)


@pytest.mark.parametrize(("rule", "path"), [("/a,b", "/a%2Cb"), ("/a%2Cb", "/a,b"), ("/%40me", "/@me")])
def test_a_reserved_character_and_its_escape_are_the_same(rule: str, path: str) -> None:
    assert not allowed(group(f"Disallow: {rule}"), path)


def test_a_sign_at_the_end_is_not_a_character() -> None:
    assert allowed(group("Disallow: /fish$"), "/fish$x")


def test_a_folder_whose_index_is_allowed_is_allowed() -> None:
    text = group("Disallow: /a/", "Allow: /a/index.html")
    assert [allowed(text, path) for path in ("/a/", "/a/index.html", "/a/b")] == [True, True, False]


def test_a_path_in_latin_1_means_what_it_was_written_for() -> None:
    assert not allowed(b"User-agent: foobot\nDisallow: /caf\xe9/\n", "/caf%E9/menu")


@pytest.mark.parametrize(
    ("lines", "path", "may"),
    [
        (["Allow: /p", "Disallow: /"], "/page", True),
        (["Disallow: /", "Allow: /p"], "/page", True),
        (["Allow: /folder", "Disallow: /folder"], "/folder/page", True),
        (["Disallow: /folder", "Allow: /folder"], "/folder/page", True),
        (["Allow: /page", "Disallow: /*.htm"], "/page.htm", False),
        (["Allow: /page", "Disallow: /*.ph"], "/page.php5", True),
        (["Allow: /$", "Disallow: /"], "/", True),
        (["Allow: /$", "Disallow: /"], "/page.htm", False),
        (["Disallow: /x", "Allow: /x/"], "/x", False),
        (["Disallow: /x", "Allow: /x/"], "/x/", True),
        (["Disallow:", "Allow:"], "/x", True),
        (["Disallow: "], "/", True),
        (["Disallow: /X/"], "/x/y", True),
        (["Disallow: /"], "/robots.txt", True),
    ],
)
def test_the_longest_rule_wins_and_of_equals_the_allowing_one(lines: list[str], path: str, may: bool) -> None:
    assert allowed(group(*lines), path) is may


@pytest.mark.parametrize(
    ("line", "agent", "ours"),
    [
        ("foobot", "foobot", True),
        ("FOOBOT", "FooBot/2.1 (+https://example.org)", True),
        ("foobot/1.2", "foobot", True),
        ("foobot and more words", "foobot", True),
        ("foobot", "foobot-news", False),
        ("foobot-news", "foobot", False),
        ("foo", "foobot", False),
        ("bot", "foobot", False),
        ("foobot*", "foobot", True),
        ("*", "foobot", True),
        ("* everybody", "foobot", True),
        ("*bot", "foobot", False),
        ("", "foobot", False),
        ("ツ", "foobot", False),
    ],
)
def test_a_group_is_for_the_product_token_whatever_its_case(line: str, agent: str, ours: bool) -> None:
    assert allowed(f"User-agent: {line}\nDisallow: /\n", "/x", agent) is not ours


@pytest.mark.parametrize(
    ("agent", "token"),
    [("Shoal/1.0 (+x)", "Shoal"), ("foo_bar-baz/2", "foo_bar-baz"), ("Mozilla/5.0 (x)", "Mozilla"), ("4711", "shoal")],
)
def test_the_product_token_is_the_first_word_without_its_version(agent: str, token: str) -> None:
    assert product_token(agent) == token


def test_everybody_elses_group_is_not_for_an_agent_with_its_own() -> None:
    text = "User-agent: *\nDisallow: /\nUser-agent: foobot\nDisallow: /y\n"
    assert allowed(text, "/x")
    assert not allowed(text, "/y")
    assert not allowed(text, "/x", "other")


def test_an_agent_that_nobody_speaks_to_may_do_anything() -> None:
    assert allowed("User-agent: barbot\nDisallow: /\n", "/x")
    assert rules("User-agent: barbot\nDisallow: /\n").group is None


@pytest.mark.parametrize(
    "between", ["Sitemap: https://example.org/s.xml", "Unknown: x", "", "# Disallow: /", "Crawl-delay: 5", "Host: x"]
)
def test_records_that_are_not_rules_do_not_end_a_group(between: str) -> None:
    text = f"User-agent: foobot\n{between}\nUser-agent: barbot\n{between}\nDisallow: /\n"
    assert not allowed(text, "/x", "foobot")
    assert not allowed(text, "/x", "barbot")


def test_rules_before_the_first_agent_are_nobodys() -> None:
    assert allowed("Disallow: /\nUser-agent: *\nAllow: /\n", "/x")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\n\r\n", "\r\r"])
def test_lines_end_in_three_ways(end: str) -> None:
    text = end.join(["User-agent: barbot", "Disallow: /", "User-agent: foobot", "Disallow: /x", "Allow: /x/y"])
    assert [allowed(text, path) for path in ("/", "/x", "/x/y")] == [True, False, True]


@pytest.mark.parametrize("character", ["\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_only_line_breaks_end_a_line(character: str) -> None:
    text = f"User-agent: foobot\nDisallow: /a{character}Allow: /\nDisallow: /b\n"
    assert [str(rule) for rule in rules(text).rules] == [f"Disallow: /a{character}Allow: /", "Disallow: /b"]
    assert not allowed(text, "/b")


@pytest.mark.parametrize(
    "start", [b"\xef\xbb\xbf", b"", b"\n\n", b"# hello\n", b"\xef\xbb\xbf\r\n", b"   \t \n", b"\x00", b"<html>\n"]
)
def test_a_file_may_begin_with_a_mark_or_with_anything(start: bytes) -> None:
    assert not allowed(start + b"User-agent: foobot\nDisallow: /\n", "/x")


def test_a_file_in_utf_16_is_read() -> None:
    assert not allowed("User-agent: *\nDisallow: /ツ\n".encode("utf-16"), "/%E3%83%84")


def test_nul_bytes_are_left_out() -> None:
    assert not allowed(b"User-\x00agent: foobot\x00\nDis\x00allow: /\x00x\n", "/x")


@pytest.mark.parametrize(
    "line",
    ["DISALLOW: /x", "dIsAlLoW:/x", "  Disallow :  /x  ", "\tDisallow\t:\t/x", "disallow: /x # why", "Disallow /x"]
    + [f"{name}: /x" for name in ("dissallow", "disalow", "diasllow", "disallaw")],
)
def test_a_line_is_parsed_leniently(line: str) -> None:
    assert not allowed(group(line), "/x")


@pytest.mark.parametrize("line", ["Disallow", "Disallow /x /y", "Dis allow: /x", "-Disallow: /x", "Disallow=/x"])
def test_a_line_without_content_is_skipped(line: str) -> None:
    assert allowed(group(line, "Disallow: /z"), "/x")
    assert not allowed(group(line, "Disallow: /z"), "/z")


@pytest.mark.parametrize("name", ["User-agent", "USER-AGENT", "useragent", "User agent"])
def test_agents_are_named_in_several_ways(name: str) -> None:
    assert not allowed(f"{name}: foobot\nDisallow: /\n", "/x")


def test_an_html_page_instead_of_robots_txt_forbids_nothing() -> None:
    page = "<!doctype html><title>Not found</title><p>User-agent: see below</p>\n<script>a: b; disallow: /</script>"
    assert allowed(page, "/x")
    assert rules(page).sitemaps == []


def test_robots_txt_is_read_up_to_500_kib() -> None:
    rule = b"Disallow: /private\n"
    start = b"User-agent: foobot\n"
    inside = start + b"#" * (MAX_BYTES - len(start) - len(rule) - 1) + b"\n" + rule
    assert len(inside) == MAX_BYTES
    assert not allowed(inside, "/private")
    assert not allowed(inside + b"Allow: /private/x\n" * 100_000, "/private/x")


@pytest.mark.parametrize("missing", range(1, 19))
def test_a_line_that_the_limit_cuts_is_left_out(missing: int) -> None:
    rule = b"Disallow: /private\n"
    start = b"User-agent: foobot\nDisallow: /a\n"
    filled = start + b"#" * (MAX_BYTES - len(start) - len(rule) - 1 + missing) + b"\n" + rule
    assert len(filled) == MAX_BYTES + missing
    assert not allowed(filled, "/a")
    assert allowed(filled, "/private")  # and so is "/p": a rule cut short would forbid too much
    assert allowed(filled, "/p")


@pytest.mark.parametrize(
    "line",
    ["Allow: /" + "*a" * 2_000 + "*b", "Disallow: /" + "*" * 3_000 + "$", "Allow: /*x*y*z", "Disallow: /aaaa*a*a$"],
)
def test_a_file_full_of_signs_is_matched_in_ordinary_time(line: str) -> None:
    body = (f"User-agent: *\n{line}\n" + f"{line}\n" * (MAX_BYTES // len(line))).encode()
    rules = Rules(RobotsRecord(RobotsState.FOUND, readable(body)), "Shoal/1", timedelta(seconds=30))
    path = "/" + "a" * 2_000
    assert rules.allows(Url(f"http://h{path}")) is ("Disallow" not in line)


def test_an_endless_line_is_ignored() -> None:
    assert rules(b"User-agent: * " * 100_000).group is None


@pytest.mark.parametrize(
    ("written", "seconds", "cut"),
    [
        ("5", 5, False),
        ("0.5", 0.5, False),
        (".5", 0.5, False),
        ("5.", 5, False),
        ("0", 0, False),
        ("30", 30, False),
        ("30.1", 30, True),
        ("86400", 30, True),
        ("9" * 400, 30, True),
        *((odd, 0, False) for odd in ("", "-1", "5s", "1e3", "inf", "nan", "1_0", "0x5", "5,0", "five", "٣", "5 5")),
    ],
)
def test_a_delay_is_a_number_of_seconds_and_has_an_end(written: str, seconds: float, cut: bool) -> None:
    found = rules(group(f"Crawl-delay: {written}"))
    assert (found.delay.total_seconds(), found.delay_was_cut) == (seconds, cut)


def test_a_delay_is_for_the_agents_right_above_it() -> None:
    text = "User-agent: slow\nCrawl-delay: 20\nUser-agent: foobot\nUser-agent: *\nCrawl-delay: 2\nDisallow: /x\n"
    delays = {agent: rules(text, agent).delay.total_seconds() for agent in ("slow", "foobot", "other")}
    assert delays == {"slow": 20, "foobot": 2, "other": 2}


def test_the_last_delay_of_an_agent_holds() -> None:
    assert rules(group("Crawl-delay: 3", "Disallow: /x", "Crawl-delay: 4")).delay == timedelta(seconds=4)
    assert rules("User-agent: *\nCrawl-delay: 3\nUser-agent: foobot\nDisallow: /x\n").delay == timedelta(0)


def test_sitemaps_stand_anywhere_and_are_counted_once() -> None:
    text = (
        "Sitemap: https://e.org/1\nUser-agent: x\nsitemap:https://e.org/2 # two\nSite-map: https://e.org/1\nSitemap:\n"
    )
    assert rules(text).sitemaps == ["https://e.org/1", "https://e.org/2"]
    many = "".join(f"Sitemap: https://e.org/{number}\n" for number in range(MOST_SITEMAPS + 5))
    assert len(rules(many).sitemaps) == MOST_SITEMAPS


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("/relative.xml", f"{SITE}/relative.xml"),
        ("sitemap.xml", f"{SITE}/sitemap.xml"),
        ("//cdn.example.org/s.xml", "https://cdn.example.org/s.xml"),
        ("https://e.org/s.xml", "https://e.org/s.xml"),
        ("http://[broken", "http://[broken"),
    ],
)
def test_a_relative_sitemap_is_one_of_the_host(written: str, url: str) -> None:
    assert rules(f"Sitemap: {written}\n").sitemaps_at(SITE) == [(url, written)]


def test_a_missing_file_allows_everything_and_an_unreachable_one_nothing() -> None:
    url = Url(f"{SITE}/x")
    assert rules("", state=RobotsState.ABSENT).allows(url)
    gone = rules("The server answered 503.", state=RobotsState.UNREACHABLE)
    assert (gone.allows(url), gone.reachable, gone.why_none) == (False, False, "The server answered 503.")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/a/b/c", "Allow: /a/b"),
        ("/a/x", "Disallow: /a"),
        ("/z", None),
        ("/same", "Allow: /same"),
        ("/ツ".encode().decode("latin-1"), None),
        ("/%E3%83%84", "Disallow: /ツ"),
        ("/q.gif", "Disallow: /*.gif$"),
    ],
)
def test_the_rule_that_decided_is_named(path: str, said: str | None) -> None:
    text = group("Disallow: /a", "Allow: /a/b", "Disallow: /same", "Allow: /same", "Disallow: /ツ", "Disallow: /*.gif$")
    decision = rules(text).decide(Url(SITE + path))
    assert (str(decision.rule) if decision.rule else None) == said


def test_the_rule_is_named_with_its_line() -> None:
    decision = rules("# hello\r\n\r\nUser-agent: foobot\r\n\rDisallow: /x\n").decide(Url(f"{SITE}/x"))
    assert decision.rule is not None
    assert decision.rule.line == 5


PIECES = ["/", "a", "b", "*", "$", "%2F", "%", "ツ", "?", "=", "&", ".", "%E3", "index.html", " ", "\u2028", "\\", "#"]
PATHS = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
LINES = st.tuples(st.sampled_from(["Allow", "Disallow"]), PATHS).map(": ".join)


@given(st.lists(LINES, max_size=6), st.lists(st.sampled_from(["a", "b", "/", "%2F", "?", "%24"]), max_size=6))
def test_the_rule_named_as_the_reason_agrees_with_the_decision(lines: list[str], path: list[str]) -> None:
    given = rules(group(*lines))
    decision = given.decide(Url(f"{SITE}/{''.join(path)}"))
    assert decision.allowed or (decision.rule is not None and not decision.rule.allow)
    assert decision.rule is None or decision.rule.allow is decision.allowed


@given(st.binary(max_size=400))
def test_no_bytes_are_too_odd_to_be_read(body: bytes) -> None:
    given = rules(b"User-agent: *\nDisallow: /" + body)
    given.decide(Url(f"{SITE}/x"))
    assert "\x00" not in readable(body)


@given(st.text(max_size=300))
def test_a_file_holds_no_more_than_was_written(text: str) -> None:
    file = RobotsFile.read(text)
    assert sum(len(rule.path) for group in file.groups for rule in group.rules) <= len(text)
