"""A browser without a script: it keeps cookies, follows redirects and sends the forms of a page."""

import asyncio
import re
from dataclasses import dataclass, field
from html import unescape
from http.client import HTTPConnection
from urllib.parse import urlencode, urlsplit


@dataclass(frozen=True)
class ShownPage:
    """A page as it came."""

    status: int
    headers: dict[str, str]
    html: str
    path: str

    @property
    def text(self) -> str:
        """The page without its markup, on one line."""
        return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", self.html.replace("<wbr>", "")))).strip()


@dataclass
class PlainBrowser:
    """A browser at one server."""

    port: int
    cookies: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, *, follow: bool = True) -> ShownPage:
        seen = await self.send("GET", path)
        for _ in range(5 if follow else 0):
            if seen.status not in (302, 303):
                break
            seen = await self.send("GET", seen.headers["location"])
        return seen

    async def post(
        self, path: str, fields: dict[str, str] | list[tuple[str, str]], *, csrf: str | None = None
    ) -> ShownPage:
        """Send a form with the token of this browser; the result is the page that it leads to."""
        pairs = list(fields.items()) if isinstance(fields, dict) else fields
        token = self.cookies.get("shoal_csrf", "") if csrf is None else csrf
        seen = await self.send("POST", path, urlencode([*pairs, ("csrf", token)]))
        return await self.get(seen.headers["location"]) if seen.status == 303 else seen

    async def sign_in(self, token: str) -> ShownPage:
        seen = await self.send("POST", "/login", urlencode({"token": token}))
        return await self.get(seen.headers["location"]) if seen.status == 303 else seen

    async def send(self, method: str, path: str, body: str | None = None) -> ShownPage:
        return await asyncio.to_thread(self._send, method, path, body)

    def _send(self, method: str, path: str, body: str | None) -> ShownPage:
        parts = urlsplit(path)
        headers = {"Accept": "text/html", "Host": f"127.0.0.1:{self.port}", **self.headers}
        if self.cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if body is not None:
            headers |= {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://127.0.0.1:{self.port}"}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            asked = parts.path + (f"?{parts.query}" if parts.query else "")
            connection.request(method, asked, body, headers)
            response = connection.getresponse()
            html = response.read().decode()
        finally:
            connection.close()
        for name, value in response.getheaders():
            if name.lower() == "set-cookie":
                self._keep(value)
        return ShownPage(response.status, {name.lower(): value for name, value in response.getheaders()}, html, path)

    def _keep(self, cookie: str) -> None:
        name, _, value = cookie.partition(";")[0].partition("=")
        if "max-age=0" in cookie.lower():
            self.cookies.pop(name, None)
        else:
            self.cookies[name] = value.strip('"')
