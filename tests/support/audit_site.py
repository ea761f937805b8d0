"""A site with every defect of the audit planted on purpose, and its clean twin.

Both have the same good pages. `PLANTED` says which code each analyzer must report, and at which path; on the twin they
must report nothing.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

Answer = tuple[int, dict[str, str], str | bytes]

SAFE: Final = {
    "Content-Type": "text/html; charset=utf-8",
    "Strict-Transport-Security": "max-age=31536000",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
WORDS: Final = [f"{first}{last}" for first in ("sal", "mor", "ten", "ruk", "vel", "pon") for last in
                ("dine", "ket", "lo", "mar", "nes", "pa", "rin", "sto", "tu", "vex", "wyn", "zor")]  # fmt: skip


def words(seed: str, count: int = 80) -> str:
    """Return text that is always the same for a seed and shares few word pairs with that of other seeds."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))


NOT_FOUND: Final = f'<!doctype html><title>Nothing here</title><h1>Gone</h1><p>{words("gone")}</p><a href="/">to /</a>'


@dataclass
class PageOf:
    """A page of the site: good in every respect, unless a field says otherwise."""

    path: str
    base: str = ""
    title: str | None = None
    description: str | None = None
    canonical: str | None = "self"
    robots: str | None = None
    h1: str | None = None
    text: str | None = None
    links: list[str] = field(default_factory=list)
    head: str = ""
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    status: int = 200

    def answer(self) -> Answer:
        name = self.path.strip("/").replace("/", " ") or "home"
        title = f"A page about {name}" if self.title is None else self.title
        about = f"All there is to say about {name}." if self.description is None else self.description
        canonical = self.base + self.path if self.canonical == "self" else self.canonical
        head = [
            f"<title>{title}</title>" if title else "",
            f'<meta name="description" content="{about}">' if about else "",
            f'<link rel="canonical" href="{canonical}">' if canonical else "",
            f'<meta name="robots" content="{self.robots}">' if self.robots else "",
            self.head,
        ]
        heading = f"<h1>About {name}</h1>" if self.h1 is None else self.h1
        anchors = "".join(f'<a href="{link}">to {link}</a>\n' for link in self.links)
        text = words(self.path) if self.text is None else self.text
        html = (
            f"<!doctype html><html lang=en><head>{''.join(head)}</head><body>{heading}<p>{text}</p>{anchors}{self.body}"
        )
        headers = {name: value for name, value in {**SAFE, **self.headers}.items() if name not in self.without}
        return self.status, headers, html


GOOD: Final = ("/good/tea", "/good/coffee", "/good/cake", "/good/old-news")
PLANTED: Final[dict[str, list[str]]] = {
    "broken_link": ["/gone"],
    "link_to_unreachable": ["/silent"],
    "link_to_redirect": ["/moved", "/hop-1", "/sometimes", "/to-gone"],
    "redirect_loop": ["/round-1"],
    "redirect_broken": ["/to-gone"],
    "redirect_chain": ["/hop-1"],
    "redirect_temporary": ["/sometimes"],
    "server_error": ["/crash"],
    "page_unreachable": ["/silent"],
    "slow_page": [],
    "title_missing": ["/untitled"],
    "title_duplicate": ["/same-title-1", "/same-title-2"],
    "title_too_long": ["/long-title"],
    "title_too_short": ["/short-title"],
    "title_multiple": ["/two-titles"],
    "description_missing": ["/undescribed"],
    "description_duplicate": ["/same-about-1", "/same-about-2"],
    "description_too_long": ["/long-about"],
    "h1_missing": ["/no-h1"],
    "h1_multiple": ["/two-h1"],
    "heading_empty": ["/empty-heading"],
    "heading_skipped": ["/skipped-heading"],
    "canonical_missing": ["/no-canonical"],
    "canonical_broken": ["/canonical-gone"],
    "canonical_redirect": ["/canonical-moved"],
    "canonical_chain": ["/canonical-chain"],
    "canonical_conflict": ["/two-canonicals"],
    "noindex_with_canonical": ["/noindex-canonical"],
    "canonical_to_noindex": ["/canonical-noindex"],
    "sitemap_noindex": ["/noindex-listed"],
    "sitemap_not_canonical": ["/canonical-listed"],
    "sitemap_error": ["/gone-listed"],
    "sitemap_redirect": ["/moved-listed"],
    "sitemap_blocked": ["/sitemap.xml"],
    "hreflang_no_return": ["/lang-alone"],
    "hreflang_broken": ["/lang-broken"],
    "hreflang_invalid": ["/lang-invalid"],
    "hreflang_no_self": ["/lang-selfless"],
    "content_duplicate": ["/same-text-1", "/same-text-2"],
    "content_near_duplicate": ["/near-text-1", "/near-text-2"],
    "orphan_page": ["/orphan"],
    "sitemap_missing_page": ["/unlisted"],
    "page_too_deep": ["/deep/5"],
    "mixed_content": ["/mixed"],
    "insecure_form": ["/form"],
    "hsts_missing": ["/no-hsts"],
    "csp_missing": ["/no-csp"],
    "content_type_options_missing": ["/no-nosniff"],
    "frame_options_missing": ["/no-frames"],
    "referrer_policy_missing": ["/no-referrer"],
    "version_disclosed": ["/version"],
    "cookie_not_secure": ["/cookie-insecure"],
    "cookie_not_http_only": ["/cookie-script"],
    "cookie_no_same_site": ["/cookie-anywhere"],
    "cookie_invalid": ["/cookie-none"],
    "image_alt_missing": ["/no-alt"],
    "structured_data_invalid": ["/bad-json-ld"],
    "structured_data_incomplete": ["/nameless-product"],
    "thin_content": ["/thin"],
    "soft_404": ["/soft-text"],
    "soft_404_title": ["/soft-title"],
    "url_too_long": ["/" + "long-" * 45],
    "url_uppercase": ["/Upper"],
    "url_underscore": ["/under_score"],
    "url_not_ascii": ["/caf%C3%A9"],
    "url_many_parameters": ["/query?a=1&b=2&c=3&d=4"],
    "url_double_slash": ["/twice//slashed"],
    "blocked_page_linked": ["/private/linked"],
    "content_signal_missing": ["/robots.txt"],
    "llms_txt_missing": ["/llms.txt"],
}
"""The paths at which each code is planted. `slow_page` and `llms_txt_invalid` have tests of their own."""

NOT_LISTED: Final = frozenset({"/unlisted", "/llms.txt", "/robots.txt"})


def clean_site(base: str) -> dict[str, Answer]:
    """Return the answers of the clean twin."""
    pages = {path: PageOf(path, base, links=["/"]) for path in GOOD}
    pages["/good/tea"].head = _languages(base, en="/good/tea", de="/good/coffee")
    pages["/good/coffee"].head = _languages(base, en="/good/tea", de="/good/coffee")
    pages["/good/cake"].body = (
        '<h2>More</h2><h3>Still more</h3><img src="/i.png" alt="A cake"><img src="/d.png" alt="">'
        '<script type="application/ld+json">{"@type": "Product", "name": "Cake"}</script>'
        '<script src="/s.js"></script><form action="/search"></form>'
    )
    pages["/good/cake"].headers = {"Set-Cookie": "s=1; Secure; HttpOnly; SameSite=Lax"}
    pages["/"] = PageOf("/", base, links=[*GOOD, "https://elsewhere.invalid/"])
    answers = {path: page.answer() for path, page in pages.items()}
    answers["/robots.txt"] = _text(
        f"User-agent: *\nContent-Signal: search=yes, ai-train=no\nSitemap: {base}/sitemap.xml\n"
    )
    answers["/llms.txt"] = _text("# The site\n\n> About tea, coffee and cake.\n")
    answers["/sitemap.xml"] = _sitemap(base, [path for path in pages if path != "/"] + ["/"])
    return answers


def planted_site(base: str) -> dict[str, Answer]:
    """Return the answers of the site with all defects."""
    pages = {path: PageOf(path, base, links=["/"]) for path in GOOD}
    for page in _defects(base):
        pages[page.path] = page
    plain = [path for path in pages if path not in ("/orphan", "/noindex-target") and not path.startswith("/deep/")]
    linked = ["/gone", "/silent", "/moved", "/hop-1", "/sometimes", "/to-gone", "/round-1", "/crash", "/private/linked"]
    pages["/"] = PageOf("/", base, links=[*plain, *linked, "/deep/1", "/noindex-target"])
    answers = {path: page.answer() for path, page in pages.items()}
    answers |= {path: (404, dict(SAFE), NOT_FOUND) for path in ("/gone", "/gone-listed")}
    answers |= {
        "/silent": (0, {}, ""),  # closes the connection
        "/crash": (500, dict(SAFE), "<!doctype html><title>Oh no</title>"),
        "/moved": _redirect(301, "/good/old-news"),
        "/moved-listed": _redirect(301, "/good/cake"),
        "/sometimes": _redirect(302, "/good/tea"),
        "/hop-1": _redirect(301, "/hop-2"),
        "/hop-2": _redirect(301, "/good/coffee"),
        "/to-gone": _redirect(301, "/gone"),
        "/round-1": _redirect(301, "/round-2"),
        "/round-2": _redirect(301, "/round-1"),
        "/robots.txt": _text(f"User-agent: *\nDisallow: /private/\nSitemap: {base}/sitemap.xml\n"),
    }
    listed = [path for path in pages if path not in NOT_LISTED and not _is_unlisted(pages[path])]
    answers["/sitemap.xml"] = _sitemap(base, [*listed, "/gone-listed", "/moved-listed", "/private/listed"])
    return answers


def _is_unlisted(page: PageOf) -> bool:
    """Return whether listing the page would be a second defect."""
    away = page.canonical not in (None, "self") and page.path != "/canonical-listed"
    return (page.robots is not None and page.path != "/noindex-listed") or away


def _defects(base: str) -> list[PageOf]:
    same, near = words("same", 200), words("near", 1500).split()
    product = '<script type="application/ld+json">{"@type": "Product"}</script>'
    pages = [
        PageOf("/untitled", title=""),
        PageOf("/same-title-1", title="A title of two pages"),
        PageOf("/same-title-2", title="A title of two pages"),
        PageOf("/long-title", title="A title that goes on " * 5),
        PageOf("/short-title", title="Tea"),
        PageOf("/two-titles", head="<title>Another title here</title>"),
        PageOf("/undescribed", description=""),
        PageOf("/same-about-1", description="Said twice on this site."),
        PageOf("/same-about-2", description="Said twice on this site."),
        PageOf("/long-about", description="It goes on and on " * 12),
        PageOf("/no-h1", h1="<h2>Only an h2</h2>"),
        PageOf("/two-h1", h1="<h1>One</h1><h1>Two</h1>"),
        PageOf("/empty-heading", h1="<h1>One</h1><h2> </h2>"),
        PageOf("/skipped-heading", h1="<h1>One</h1><h3>Three</h3>"),
        PageOf("/no-canonical", canonical=None),
        PageOf("/canonical-gone", canonical="/gone"),
        PageOf("/canonical-moved", canonical="/moved"),
        PageOf("/canonical-chain", canonical="/canonical-listed"),
        PageOf("/canonical-listed", canonical="/good/tea"),
        PageOf("/two-canonicals", head='<link rel="canonical" href="/good/tea">'),
        PageOf("/noindex-canonical", canonical="/good/tea", robots="noindex"),
        PageOf("/canonical-noindex", canonical="/noindex-target"),
        PageOf("/noindex-target", robots="noindex"),
        PageOf("/noindex-listed", robots="noindex"),
        PageOf("/lang-alone", head=_languages(base, en="/lang-alone", de="/good/cake")),
        PageOf("/lang-broken", head=_languages(base, en="/lang-broken", de="/gone")),
        PageOf("/lang-invalid", head=_languages(base, english="/lang-invalid")),
        PageOf("/lang-selfless", head=_languages(base, de="/lang-self")),
        PageOf("/lang-self", head=_languages(base, en="/lang-selfless", de="/lang-self")),
        PageOf("/same-text-1", h1="<h1>One text</h1>", text=same),
        PageOf("/same-text-2", h1="<h1>One text</h1>", text=same),
        PageOf("/near-text-1", h1="<h1>Near texts</h1>", text=" ".join(near)),
        PageOf("/near-text-2", h1="<h1>Near texts</h1>", text=" ".join([*near, "changed"])),
        PageOf("/orphan"),
        PageOf("/unlisted"),
        *(PageOf(f"/deep/{step}", links=[f"/deep/{step + 1}"]) for step in range(1, 5)),
        PageOf("/deep/5"),
        PageOf("/mixed", body='<img src="http://elsewhere.invalid/i.png" alt="An image">'),
        PageOf("/form", body='<form action="http://elsewhere.invalid/"></form>'),
        PageOf("/no-hsts", without=("Strict-Transport-Security",)),
        PageOf("/no-csp", without=("Content-Security-Policy",), headers={"X-Frame-Options": "DENY"}),
        PageOf("/no-nosniff", without=("X-Content-Type-Options",)),
        PageOf("/no-frames", headers={"Content-Security-Policy": "default-src 'self'"}),
        PageOf("/no-referrer", without=("Referrer-Policy",)),
        PageOf("/version", headers={"Server": "nginx/1.2.3", "X-Powered-By": "PHP/5.4"}),
        PageOf("/cookie-insecure", headers={"Set-Cookie": "a=1; HttpOnly; SameSite=Lax"}),
        PageOf("/cookie-script", headers={"Set-Cookie": "b=1; Secure; SameSite=Lax"}),
        PageOf("/cookie-anywhere", headers={"Set-Cookie": "c=1; Secure; HttpOnly"}),
        PageOf("/cookie-none", headers={"Set-Cookie": "d=1; HttpOnly; SameSite=None"}),
        PageOf("/no-alt", body='<img src="/i.png">'),
        PageOf("/bad-json-ld", body='<script type="application/ld+json">{"@type": </script>'),
        PageOf("/nameless-product", body=product),
        PageOf("/thin", text="Few words."),
        PageOf("/soft-title", title="Page not found, sorry"),
        PageOf("/soft-text", title="Nothing to see here", h1="<h1>Gone</h1>", text=words("gone")),
        PageOf("/" + "long-" * 45, title="A page with a long address", description="It has a long address."),
        PageOf("/Upper"),
        PageOf("/under_score"),
        PageOf("/caf%C3%A9"),
        PageOf("/query?a=1&b=2&c=3&d=4"),
        PageOf("/twice//slashed"),
    ]
    for page in pages:
        page.base = base
        page.links = page.links or ["/"]
    return pages


def _languages(base: str, **paths: str) -> str:
    return "".join(f'<link rel="alternate" hreflang="{lang}" href="{base}{path}">' for lang, path in paths.items())


def _redirect(status: int, to: str) -> Answer:
    return status, {"Location": to}, ""


def _text(text: str) -> Answer:
    return 200, {"Content-Type": "text/plain; charset=utf-8"}, text


def _sitemap(base: str, paths: list[str]) -> Answer:
    entries = "".join(f"<url><loc>{base}{path.replace('&', '&amp;')}</loc></url>" for path in paths)
    return (
        200,
        {"Content-Type": "application/xml"},
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{entries}</urlset>',
    )
