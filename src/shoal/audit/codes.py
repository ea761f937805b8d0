"""The vocabulary of reports: codes of findings, metrics of a crawl, and what no analyzer checks."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from shoal.audit.finding import FindingCode, Severity

if TYPE_CHECKING:
    from shoal.audit.analysis import Analysis

_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTICE


def _code(code: str, severity: Severity, title: str, fix: str, *, timing: bool = False) -> FindingCode:
    return FindingCode(code, severity, title, fix, timing)


BY_ANALYZER: Final[Mapping[str, tuple[FindingCode, ...]]] = {
    "links": (
        _code("broken_link", _E, "Pages link to a URL that answers with a 4xx status.",
              "Correct or remove the links, or restore the page."),
        _code("link_to_unreachable", _E, "Pages link to a URL that gave no response.",
              "Check the address and its server, or remove the links."),
        _code("link_to_redirect", _N, "Pages link to a URL that redirects.",
              "Link to the final URL: this saves every visitor a request."),
    ),
    "redirects": (
        _code("redirect_loop", _E, "The URL redirects in a circle, or too often.",
              "Make one URL of the loop return a page."),
        _code("redirect_broken", _E, "The URL redirects to a page that answers with an error.",
              "Redirect to a page that exists."),
        _code("redirect_chain", _W, "The URL redirects more than once before it reaches a page.",
              "Redirect directly to the final URL."),
        _code("redirect_temporary", _N, "The URL redirects with a temporary status (302, 303 or 307).",
              "Use 301 or 308 if the move is permanent."),
    ),
    "responses": (
        _code("server_error", _E, "The page answers with a 5xx status.",
              "Look up the request in the server log and correct the failure."),
        _code("page_unreachable", _E, "The page gave no complete response.",
              "Check DNS, TLS and the limits of the server; the evidence names the error."),
    ),
    "speed": (
        _code("slow_page", _W, "The server took a long time to send the page.",
              "Cache the page, or find out what the server waits for.", timing=True),
    ),
    "titles": (
        _code("title_missing", _E, "The page has no title.", "Write a title that names the content of the page."),
        _code("title_duplicate", _W, "Other pages have the same title.",
              "Give each page a different title, or declare one of the pages canonical."),
        _code("title_too_long", _N, "The title is too long to be shown in full in search results.",
              "Shorten the title, or move the important words to the front."),
        _code("title_too_short", _N, "The title is too short to say much.", "Describe the page in a few words."),
        _code("title_multiple", _W, "The page has several title elements.", "Keep one title in the head."),
    ),
    "descriptions": (
        _code("description_missing", _W, "The page has no meta description.",
              "Summarize the page in one or two sentences."),
        _code("description_duplicate", _W, "Other pages have the same meta description.",
              "Describe each page in its own words."),
        _code("description_too_long", _N, "The meta description is too long to be shown in full in search results.",
              "Shorten the description to about 160 characters."),
    ),
    "headings": (
        _code("h1_missing", _W, "The page has no h1 heading.", "Give the page one h1 that names its subject."),
        _code("h1_multiple", _N, "The page has several h1 headings.", "Keep one h1 and make the others h2."),
        _code("heading_empty", _N, "A heading has no text.", "Add text to the heading, or remove it."),
        _code("heading_skipped", _N, "The headings skip a level, such as h2 to h4.",
              "Use the levels in order, so that screen readers show the outline."),
    ),
    "canonicals": (
        _code("canonical_missing", _N, "The page does not declare its canonical URL.",
              "Add a link with rel=canonical to the head."),
        _code("canonical_broken", _E, "The canonical URL does not answer with a page.",
              "Declare a canonical URL that answers 200."),
        _code("canonical_redirect", _W, "The canonical URL redirects.", "Declare the final URL as canonical."),
        _code("canonical_chain", _W, "The canonical page declares another page as canonical.",
              "On all pages of the chain, declare the last page as canonical."),
        _code("canonical_conflict", _E, "The page declares several canonical URLs.", "Keep one canonical URL."),
    ),
    "indexability": (
        _code("noindex_with_canonical", _W, "The page is noindex and declares another page as canonical.",
              "Remove noindex or the canonical link: with both, search engines may drop both pages."),
        _code("canonical_to_noindex", _E, "The canonical page is noindex.",
              "Remove noindex from the canonical page, or remove the canonical link to it."),
        _code("sitemap_noindex", _W, "A sitemap lists a page that is noindex.",
              "Remove noindex from the page, or remove the page from the sitemap."),
        _code("sitemap_not_canonical", _W, "A sitemap lists a page that declares another page as canonical.",
              "List the canonical page instead."),
        _code("sitemap_error", _E, "A sitemap lists a URL that answers with an error.",
              "Restore the page, or remove the entry."),
        _code("sitemap_redirect", _W, "A sitemap lists a URL that redirects.", "List the final URL."),
        _code("sitemap_blocked", _W, "The sitemap lists URLs that robots.txt forbids.",
              "Allow the URLs in robots.txt, or remove them from the sitemap."),
    ),
    "hreflang": (
        _code("hreflang_no_return", _W, "A page in another language does not link back with hreflang.",
              "On every language version, declare all other versions as alternates."),
        _code("hreflang_broken", _E, "An hreflang link leads to a page that does not answer 200.",
              "Correct the link, or remove it."),
        _code("hreflang_invalid", _W, "An hreflang value is not a language code.",
              "Use a code such as en, en-GB or x-default."),
        _code("hreflang_no_self", _N, "The hreflang links of the page do not name the page itself.",
              "Add the page to its own alternates."),
    ),
    "duplicates": (
        _code("content_duplicate", _W, "Other pages have exactly the same text.",
              "Redirect the copies, or declare one of them canonical."),
        _code("content_near_duplicate", _N, "Other pages have almost the same text.",
              "Merge the pages, or make their texts differ."),
    ),
    "orphans": (
        _code("orphan_page", _W, "A sitemap lists the page, but no page links to it.",
              "Link to this page from a page that visitors find, or remove it."),
        _code("sitemap_missing_page", _N, "The page can be indexed, but no sitemap lists it.",
              "Add the page to a sitemap."),
    ),
    "depth": (
        _code("page_too_deep", _N, "Visitors need many clicks to reach the page.",
              "Link to this page from a page closer to the start."),
    ),
    "mixed_content": (
        _code("mixed_content", _E, "A page served over https loads resources over http.",
              "Load the resources over https: browsers block them or show a warning."),
        _code("insecure_form", _E, "A form on an https page is submitted over http.",
              "Submit the form to an https URL."),
    ),
    "security_headers": (
        _code("hsts_missing", _W, "The HTTPS response has no Strict-Transport-Security header.",
              "Send the header with a max-age of at least half a year."),
        _code("csp_missing", _N, "The response has no Content-Security-Policy header.",
              "Send a policy that names the allowed sources."),
        _code("content_type_options_missing", _W, "The response has no X-Content-Type-Options header.",
              "Send X-Content-Type-Options: nosniff."),
        _code("frame_options_missing", _W, "Other sites can embed the page in a frame.",
              "Send Content-Security-Policy: frame-ancestors, or X-Frame-Options."),
        _code("referrer_policy_missing", _N, "The page does not declare a referrer policy.",
              "Send Referrer-Policy: strict-origin-when-cross-origin."),
        _code("version_disclosed", _N, "The response names the version of the server's software.",
              "Remove the version from Server, and remove X-Powered-By."),
    ),
    "cookies": (
        _code("cookie_not_secure", _W, "A cookie set over https lacks the attribute Secure.", "Set Secure."),
        _code("cookie_not_http_only", _N, "A cookie lacks the attribute HttpOnly.",
              "Set HttpOnly unless scripts need the cookie."),
        _code("cookie_no_same_site", _N, "A cookie lacks the attribute SameSite.", "Set SameSite=Lax or Strict."),
        _code("cookie_invalid", _W, "A cookie has SameSite=None without Secure, so browsers reject it.",
              "Set Secure too."),
    ),
    "images": (
        _code("image_alt_missing", _W, "Images have no alt attribute.",
              "Describe each image; use alt=\"\" for decoration."),
    ),
    "structured_data": (
        _code("structured_data_invalid", _E, "A block of JSON-LD cannot be parsed.",
              "Correct the JSON; the evidence has the position."),
        _code("structured_data_incomplete", _W, "Structured data lacks a property that its type requires.",
              "Add the properties that the evidence names."),
    ),
    "thin_content": (
        _code("thin_content", _N, "The page has very few words.", "Write more, merge the page with another page, or"
            " mark the page noindex."),
    ),
    "soft_404": (
        _code("soft_404", _E, "The page looks like the site's error page for missing pages, but its status is 200.",
              "Answer 404 or 410 for pages that do not exist."),
        _code("soft_404_title", _N, "The title or heading says that the page was not found, but the status is 200.",
              "If the page does not exist, answer 404 or 410."),
    ),
    "urls": (
        _code("url_too_long", _N, "The URL is longer than 200 characters.", "Shorten the URL."),
        _code("url_uppercase", _N, "The path has capital letters.", "Use lower case and redirect the other forms."),
        _code("url_underscore", _N, "The path has underscores.", "Separate words with hyphens."),
        _code("url_not_ascii", _N, "The path has characters outside ASCII.",
              "Use ASCII, or make sure that all links encode the path in the same way."),
        _code("url_many_parameters", _N, "The URL has more than three query parameters.",
              "Drop parameters that do not change the page."),
        _code("url_double_slash", _W, "The path has an empty segment (//).", "Remove the extra slash from the links."),
    ),
    "robots_txt": (
        _code("blocked_page_linked", _N, "Pages link to URLs that robots.txt forbids.",
              "Allow the pages, or remove the links."),
        _code("content_signal_missing", _N, "robots.txt declares no Content-Signal.",
              "State whether search, AI answers and AI training may use the content."),
    ),
    "llms_txt": (
        _code("llms_txt_missing", _N, "The site has no /llms.txt.",
              "Offer an index for language models if you want them to read the site."),
        _code("llms_txt_invalid", _W, "/llms.txt does not follow the format.",
              "Begin the file with one `# Title` line, and serve the file as plain text or Markdown."),
    ),
}  # fmt: skip
"""The codes of each built-in analyzer, in the order in which they are documented."""

CODES: Final[Mapping[str, FindingCode]] = {code.code: code for codes in BY_ANALYZER.values() for code in codes}

ANALYZER_OF: Final[Mapping[str, str]] = {
    code.code: analyzer for analyzer, codes in BY_ANALYZER.items() for code in codes
}
"""The analyzer that reports a code."""


Metrics = dict[str, float]

NAMED: Final[Mapping[str, str]] = {
    "pages": "pages that got a response",
    "failed_pages": "pages that got no response",
    "errors": "findings with severity error",
    "warnings": "findings with severity warning",
    "notices": "findings with severity notice",
    "findings": "all findings",
    "broken_links": "linked URLs that answer with a 4xx status, or do not answer",
    "server_errors": "pages that answer with a 5xx status",
    "redirects": "pages that redirect",
    "duplicate_titles": "pages that share their title with another page",
    "duplicate_descriptions": "pages that share their meta description with another page",
    "duplicate_pages": "pages that share their text with another page",
    "orphan_pages": "pages that a sitemap lists, but to which no page links",
    "avg_response_ms": "mean response time of all pages, in milliseconds",
    "p95_response_ms": "95th percentile of the response times, in milliseconds",
    "max_response_ms": "longest response time, in milliseconds",
    "max_depth": "largest number of clicks that a page is away from its nearest seed; pages to which no links lead do"
    " not count",
    "blocked_pages": "pages that refused the crawler (401, 403, 407, 429 or 503)",
    "quarantined_urls": "URLs in quarantine because they look like a crawler trap",
}
"""Metrics that are not the count of one finding code, each with a description."""

SUMS: Final[Mapping[str, tuple[str, ...]]] = {
    "broken_links": ("broken_link", "link_to_unreachable"),
    "server_errors": ("server_error",),
    "duplicate_titles": ("title_duplicate",),
    "duplicate_descriptions": ("description_duplicate",),
    "duplicate_pages": ("content_duplicate", "content_near_duplicate"),
    "orphan_pages": ("orphan_page",),
}
"""Metrics that add up the findings of some codes."""

BY_SEVERITY: Final = {"errors": "error", "warnings": "warning", "notices": "notice"}
TIMING: Final = frozenset({"avg_response_ms", "p95_response_ms", "max_response_ms"})
"""Metrics that depend on how fast the server was."""


def is_timing(metric: str) -> bool:
    """Return whether a metric depends on how fast the server was at the time of the crawl."""
    return metric in TIMING or (metric in CODES and CODES[metric].timing)


NOT_CHECKED: Final[Mapping[str, str]] = {
    "external_links": "links to other sites",
    "uncrawled_links": "links to pages that were not crawled",
    "targets": "canonical and hreflang targets",
    "probes": "paths that analyzers request from each host, such as /llms.txt",
    "quarantined": "pages in quarantine as a crawler trap",
    "fragments": "#fragments of links",
    "images": "images",
    "styles": "stylesheets",
    "scripts": "scripts",
    "frames": "frames",
    "media": "videos, audio and embedded files",
    "texts": "texts that were stored without a hash",
}
"""The kinds of things that may be left unchecked, in the order in which they are listed."""

ALWAYS: Final = ("external_links", "fragments", "images", "styles", "scripts", "frames", "media")
"""The parts that no analysis checks. Links, images and so on are counted once for each page that has them."""


def not_checked_by(analysis: "Analysis") -> dict[str, int | None]:
    """Return how many things of each kind an analysis did not check; None for an unknown number. For analyses that
    ended before these numbers were recorded, only the number of URLs in quarantine is known, from their metrics."""
    counts: dict[str, int | None] = dict.fromkeys(ALWAYS)
    if held := round((analysis.metrics or {}).get("quarantined_urls", 0)):
        counts["quarantined"] = held
    counts = (analysis.summary or {}).get("not_checked", counts)
    return {kind: counts[kind] for kind in NOT_CHECKED if kind in counts}


def in_words(counts: Mapping[str, int | None]) -> str:
    """Return the list as text: `images (3), scripts (1), #fragments of links`."""
    return ", ".join(
        name if counts[kind] is None else f"{name} ({counts[kind]:,})"
        for kind, name in NOT_CHECKED.items()
        if kind in counts
    )
