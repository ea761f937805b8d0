"""Cookies without the attributes that protect them."""

from collections.abc import Iterator

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.details import CookieFacts, PageDetails
from shoal.audit.site import Site


def _set_cookies(details: PageDetails) -> list[CookieFacts] | None:
    return details.cookies or None


class Cookies:
    name = "cookies"
    codes = BY_ANALYZER["cookies"]
    needs = Needs(details={"cookies": _set_cookies})

    def analyze(self, site: Site) -> Iterator[Found]:
        problems: dict[str, list[tuple[int, str]]] = {code.code: [] for code in self.codes}
        is_https = site.pages.is_https
        for page, cookies in enumerate(site.details[self.name]["cookies"]):
            for cookie in cookies or ():
                for code in _problems(cookie, bool(is_https[page])):
                    problems[code].append((page, cookie.name))
        for code, found in problems.items():
            yield _found(code, found)


def _problems(cookie: CookieFacts, is_https: bool) -> Iterator[str]:
    same_site = (cookie.same_site or "").lower()
    if same_site == "none" and not cookie.secure:
        yield "cookie_invalid"
    elif is_https and not cookie.secure:
        yield "cookie_not_secure"
    if not cookie.http_only:
        yield "cookie_not_http_only"
    if not same_site:
        yield "cookie_no_same_site"


def _found(code: str, found: list[tuple[int, str]]) -> Found:
    return Found(
        code,
        np.array([page for page, _ in found], np.intp),
        evidence=lambda place: {"cookie": found[place][1]},
        identity=lambda place: found[place][1],
    )
