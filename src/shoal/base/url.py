"""Canonical URLs: one text per address, or the reason why a link is refused.

URLs are parsed by the library `ada`, as the WHATWG specifies. Then this module removes the fragment, an empty query, a
trailing dot of the host, and tracking and session parameters. Scope, traps and IP addresses are checked elsewhere.
"""

import re
from collections.abc import Container, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NewType

from ada_url import idna, join_url, normalize_url
from msgspec import Struct

from shoal.base.query_params import SESSION, TRACKING
from shoal.base.text import message

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList

Url = NewType("Url", str)
"""An absolute http or https URL in canonical form: `canonical(url) == url`."""


class UrlRefusal(IntEnum):
    """The reason why a link is refused. The frontier stores the number."""

    INVALID_URL = 1
    SCHEME_NOT_ALLOWED = 2
    URL_TOO_LONG = 3
    HOST_TOO_LONG = 4
    CREDENTIALS_IN_URL = 5
    CONTROL_CHARACTERS = 6
    BACKSLASH_IN_URL = 7

    @property
    def code(self) -> str:
        """The stable public name."""
        return self.name.lower()

    @property
    def problem(self) -> str:
        """The reason, worded to follow the name of a field."""
        return _PROBLEMS[self]


_PROBLEMS: Final = {
    UrlRefusal.INVALID_URL: message("is not an absolute http or https URL"),
    UrlRefusal.SCHEME_NOT_ALLOWED: message("has a scheme other than http and https"),
    UrlRefusal.URL_TOO_LONG: message("is longer than the limit"),
    UrlRefusal.HOST_TOO_LONG: message("has a host name that is not valid in DNS"),
    UrlRefusal.CREDENTIALS_IN_URL: message("contains a user name or a password"),
    UrlRefusal.CONTROL_CHARACTERS: message("contains control characters"),
    UrlRefusal.BACKSLASH_IN_URL: message("contains a backslash"),
}


class UrlRules(Struct, frozen=True):
    """Rules for deciding which URLs are the same page. Names are case-insensitive; `NAME*` matches a prefix.

    Tracking, session and dropped parameters are removed from the query, and session parameters also from the path;
    `keep` takes precedence over the other lists.
    """

    max_length: int = 2083
    tracking: tuple[str, ...] = TRACKING
    session: tuple[str, ...] = SESSION
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    sort_query: bool = False


DEFAULT_RULES: Final = UrlRules()


def canonical(url: str, rules: UrlRules = DEFAULT_RULES) -> Url | UrlRefusal:
    """Return the canonical form of an absolute URL, or the reason for refusing it. Idempotent."""
    return _canonicalizer(rules).canonical(url)


def origin(url: Url) -> str:
    """Return `scheme://host[:port]` of a canonical URL; the scheme's default port is omitted."""
    return url[: url.index("/", 8)]


def authority(url: Url) -> str:
    """Return `host[:port]` of a canonical URL."""
    return url[url.index("/") + 2 : url.index("/", 8)]


def hostname(url: Url) -> str:
    """Return the host of a canonical URL, as an A-label or an IP address; IPv6 keeps its brackets."""
    return _without_port(authority(url))


@lru_cache(maxsize=4096)
def registrable_domain(host: str) -> str:
    """Return the registrable domain: `shop.example.co.uk` → `example.co.uk`. IP addresses and public suffixes are
    returned unchanged."""
    if host.startswith("[") or _ENDS_IN_NUMBER.search(host):
        return host
    return _suffixes().privatesuffix(host) or host


# If a URL matches, the parser would not change it: there are only safe characters, no `;` that may start a session
# parameter, and no `//` that may precede a host. Dot segments (also encoded ones) and the origin are checked
# separately.
_PLAIN_URL: Final = re.compile(
    r"(https?://[a-z0-9.\-]++(?::[0-9]++)?)/(?!/)[A-Za-z0-9\-._~!$&'()*+,=@%/]*+"
    r"(\?[A-Za-z0-9\-._~!$&()*+,;=:@/?%]++)?"
)
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_WITH_HOST: Final = re.compile(r"https?://[^/]", re.IGNORECASE)
_WITHOUT_HOST: Final = re.compile(r"https?:///", re.IGNORECASE)
_SAME_FOR_ALL_PAGES: Final = re.compile(r"/|https?://|(?!https?:)[a-z][a-z0-9+.\-]*:", re.IGNORECASE)
_HIDDEN_HOST: Final = re.compile(r"(?:https?:)?[/\\]{2}[^/?\\]*+\\[^/?@]*+@", re.IGNORECASE)  # http://host\@other/
_BROKEN: Final = re.compile(r"[\t\n\r]")
_LINE_BREAKS: Final = dict.fromkeys(map(ord, "\t\n\r"))
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_ENDS_IN_NUMBER: Final = re.compile(r"(?:\A|\.)[0-9]+\Z")
_PORT: Final = re.compile(r":[0-9]+\Z")
_WHITESPACE: Final = " \t\n\r\f"

_Links = dict[str, Any]  # link text to Url or UrlRefusal

_HOST_LIMIT: Final = 253
_LABEL_LIMIT: Final = 63
_CACHE_LIMIT: Final = 32_768
_CACHED_LENGTH: Final = 512


class Canonicalizer:
    """Canonicalizes URLs by one set of rules. It has bounded caches and is not thread-safe."""

    def __init__(self, rules: UrlRules = DEFAULT_RULES) -> None:
        self.rules = rules
        names = rules.tracking + rules.session + rules.drop
        self._suspect = re.compile(f"[?&]{_any_of(names, '')}")
        self._dropped = _parameters(names, rules.keep, r"(?:\A|&)", "&")
        self._sessions = _parameters(rules.session, rules.keep, ";", ";/")
        self._links: dict[str, _Links] = {}
        self._link_count = 0
        self._origins: set[str] = set()

    def canonical(self, url: str) -> Url | UrlRefusal:
        """Return the canonical form of an absolute URL, or the reason for refusing it."""
        return self._parse(url, None)

    def base(self, page: Url, href: str | None) -> Url:
        """Return the base URL for the links of a page: its `<base href>` if that is usable, else the page itself."""
        found = page if href is None else self._parse(href, page)
        return page if isinstance(found, UrlRefusal) else found

    def resolve(self, base: Url, hrefs: Sequence[str], proven: Container[str] = ()) -> list[Url | UrlRefusal]:
        """Return the canonical form of each link of a page, in order. `base` must be canonical under the same rules,
        and so must the URLs in `proven`, which are not checked again."""
        host_origin = origin(base)
        links = self._links.get(host_origin)
        if links is None:
            links = self._links[host_origin] = {}
        found: list[Any] = list(map(links.get, hrefs))
        if None in found:
            self._resolve_missing(base, host_origin, hrefs, found, links, proven)
        return found

    def _resolve_missing(
        self,
        base: Url,
        host_origin: str,
        hrefs: Sequence[str],
        found: list[Any],
        links: _Links,
        proven: Container[str],
    ) -> None:
        self._evict()
        self._origins.add(host_origin)
        glue = _Start(base, host_origin).glue
        for place, href in enumerate(hrefs):
            if found[place] is None:
                text = glue(href)
                if text in proven or self._is_canonical(text):
                    found[place] = text
                    if (href[0] == "/" or text is href) and len(href) <= _CACHED_LENGTH and "?" not in href:
                        links[href] = text
                        self._link_count += 1
                else:
                    found[place] = self._parse_link(href, base, links)

    def _is_canonical(self, text: str) -> bool:
        """Return whether the text is certainly canonical. If False, only the parser can decide."""
        match = _PLAIN_URL.fullmatch(text)
        if match is None or "/." in text or "/%2" in text or len(text) > self.rules.max_length:
            return False
        host_origin, query = match.groups()
        if query is None:
            return host_origin in self._origins
        return host_origin in self._origins and not self.rules.sort_query and not self._suspect.search(query.lower())

    def _parse_link(self, href: str, base: Url, links: _Links) -> Url | UrlRefusal:
        url = self._parse(href, base)
        if isinstance(url, str):
            self._origins.add(origin(url))
        if len(href) <= _CACHED_LENGTH and _SAME_FOR_ALL_PAGES.match(href):
            links[href] = url
            self._link_count += 1
        return url

    def _evict(self) -> None:
        if self._link_count + len(self._links) + len(self._origins) > _CACHE_LIMIT:
            self._links.clear()
            self._origins.clear()
            self._link_count = 0

    def _parse(self, text: str, base: Url | None) -> Url | UrlRefusal:
        text, mark, _ = text.strip(_WHITESPACE).partition("#")
        if base is not None:
            text = _as_a_browser_reads(text)
        refusal = self._refusal(text, base)
        if refusal is not None:
            return refusal
        try:
            # Keep the `#`: otherwise the parser would strip a space before the fragment as trailing white space.
            url = normalize_url(text + mark) if base is None else join_url(base, text + mark)
        except ValueError:
            return UrlRefusal.INVALID_URL
        return self._reduce(url.partition("#")[0])

    def _refusal(self, text: str, base: Url | None) -> UrlRefusal | None:
        scheme = _SCHEME.match(text)
        if scheme and scheme[1].lower() not in ("http", "https"):
            return UrlRefusal.SCHEME_NOT_ALLOWED
        if len(text) > self.rules.max_length:
            return UrlRefusal.URL_TOO_LONG
        if _CONTROL.search(text):
            return UrlRefusal.CONTROL_CHARACTERS
        if "\\" in text.partition("?")[0]:
            return UrlRefusal.BACKSLASH_IN_URL
        # The standard would take `x` in `http:///x` as the host, which is never meant.
        malformed = _WITHOUT_HOST.match(text) if base else not _WITH_HOST.match(text)
        return UrlRefusal.INVALID_URL if malformed else None

    def _reduce(self, url: str) -> Url | UrlRefusal:
        """Reduce the URL that the standard defines to the canonical form. Parse the URL again after a removal that may
        have created a dot segment."""
        head, _, query = url.partition("?")
        slash = head.index("/", 8)
        scheme, _, host = head[:slash].partition("://")
        refusal = _host_refusal(host)
        if refusal is not None:
            return refusal
        name = _without_port(host)
        bare = name.rstrip(".") + host[len(name) :]
        path = self._sessions.sub("", head[slash:])
        if bare != host or path != head[slash:]:
            try:
                again = normalize_url(f"{scheme}://{bare}{path}")
            except ValueError:
                return UrlRefusal.INVALID_URL
            return self._reduce(f"{again}?{query}" if query else again)
        query = self._reduced_query(query)
        reduced = f"{head}?{query}" if query else head
        return UrlRefusal.URL_TOO_LONG if len(reduced) > self.rules.max_length else Url(reduced)

    def _reduced_query(self, query: str) -> str:
        kept = self._dropped.sub("", query)
        if kept != query:
            kept = kept.lstrip("&")
        if self.rules.sort_query:
            return "&".join(sorted(kept.split("&"), key=lambda parameter: parameter.partition("=")[0]))
        return kept


@lru_cache(maxsize=64)
def _canonicalizer(rules: UrlRules) -> Canonicalizer:
    return Canonicalizer(rules)


@lru_cache(maxsize=1)
def _suffixes() -> "PublicSuffixList":
    from publicsuffixlist import PublicSuffixList

    return PublicSuffixList()


def _parameters(names: tuple[str, ...], kept: tuple[str, ...], before: str, stops: str) -> re.Pattern[str]:
    """Return a pattern for these parameters and their separator. `stops`: the characters that end a parameter."""
    rest, end = f"[^={stops}]*", f"(?=[{stops}]|\\Z)"
    spared = f"(?!{_any_of(kept, rest)}(?:=|{end}))" if kept else ""
    return re.compile(f"{before}{spared}{_any_of(names, rest)}(?:=[^{stops}]*)?{end}", re.IGNORECASE)


def _any_of(names: tuple[str, ...], rest: str) -> str:
    """Return a pattern that matches any of these names; `rest` is the pattern that replaces a final `*`."""
    parts = (re.escape(name.lower().removesuffix("*")) + rest * name.endswith("*") for name in names)
    return f"(?:{'|'.join(parts)})" if names else "(?!)"


def _as_a_browser_reads(link: str) -> str:
    """Remove tabs and line ends from a link of a page, and replace backslashes in the link's path by slashes. URLs that
    users and programs give are not repaired: in them, such characters are mistakes, or attempts to hide a host."""
    link = link.translate(_LINE_BREAKS) if _BROKEN.search(link) else link
    if "\\" not in link or _HIDDEN_HOST.match(link):
        return link
    path, mark, query = link.partition("?")
    return path.replace("\\", "/") + mark + query


class _Start:
    """The base of a page's links: the page itself, its origin, its folder and the parent folder."""

    __slots__ = ("above", "base", "folder", "host_origin")

    def __init__(self, base: Url, host_origin: str) -> None:
        query = base.find("?")
        self.base = base
        self.host_origin = host_origin
        self.folder = base[: base.rindex("/", 0, query if query > 0 else None) + 1]
        self.above = _above(self.folder, host_origin)

    def glue(self, href: str) -> str:
        """Return the absolute URL of a plain link. For any other link, return a text that is not a canonical URL."""
        first = href[:1]
        if first == "/":
            text = self.host_origin + href if href[1:2] != "/" else ""
        elif first == "h" and href.startswith(("http://", "https://")):
            text = href
        elif first == ".":
            text = self._parent_folder(href)
        elif first == "#":
            return self.base
        elif first in ("", "?") or (":" in href and _SCHEME.match(href)):
            return ""
        else:
            text = self.folder + href
        mark = text.find("#")
        return text if mark < 0 else text[:mark]

    def _parent_folder(self, href: str) -> str:
        if href[:3] != "../":
            return self.folder + (href[2:] if href[:2] == "./" else href)
        folder, href = self.above, href[3:]
        if len(href) <= _CACHED_LENGTH:
            while href[:3] == "../":
                folder, href = _above(folder, self.host_origin), href[3:]
        return folder + (href[2:] if href[:2] == "./" else href)


def _above(folder: str, host_origin: str) -> str:
    return folder[: folder.rindex("/", 0, -1) + 1] if len(folder) > len(host_origin) + 1 else folder


def _without_port(host: str) -> str:
    return _PORT.sub("", host)


def _host_refusal(host: str) -> UrlRefusal | None:
    if "@" in host:
        return UrlRefusal.CREDENTIALS_IN_URL
    name = _without_port(host).rstrip(".")
    labels = name.split(".")
    if not all(labels):
        return UrlRefusal.INVALID_URL
    if len(name) > _HOST_LIMIT or len(max(labels, key=len)) > _LABEL_LIMIT:
        return UrlRefusal.HOST_TOO_LONG
    # The parser accepts any ASCII name. If the decoder returns a label unchanged, the label is not valid punycode.
    if any(label.startswith("xn--") and idna.decode(label) == label for label in labels):
        return UrlRefusal.INVALID_URL
    return None
