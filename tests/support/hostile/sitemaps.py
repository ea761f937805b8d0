"""Sitemaps that are compression bombs, refer to themselves or are false, and a valid one (B59-B62)."""

import gzip

from tests.support.bad_http_server import Script, reply
from tests.support.hostile.answers import repeat, send

XML = ("Content-Type", "application/xml")
SPACE = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'

LAUGHS = "".join(
    f'<!ENTITY l{number} "{f"&l{number - 1};" * 10 if number else "/never/"}">' for number in range(10)
)  # fmt: skip


def maps(site: str, canary: int) -> dict[str, Script]:
    """Path -> what is played there. `/maps/index.xml` leads to all others."""
    inside = f"http://127.0.0.1:{canary}"
    listed = [
        f"{site}/maps/index.xml",
        f"{site}/maps/good.xml.gz",
        f"{site}/maps/laughs.xml",
        f"{site}/maps/entity.xml",
        f"{site}/maps/bomb.xml.gz",
        f"{site}/maps/endless.xml",
        f"{site}/maps/cut.xml",
        f"{site}/maps/page.xml",
        f"{site}/maps/deep/1.xml",
        f"{inside}/sitemap.xml",
        "file:///etc/passwd",
    ]
    good = [
        f"{site}/mapped",
        f"{inside}/mapped",
        "javascript:alert(1)",
        "/never/relative",
        f"{site}/never/{'x' * 10_000}",
        f"http://user:secret@127.0.0.1:{canary}/never",
    ]
    entity = '<!DOCTYPE urlset [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
    return {
        "/maps/index.xml": _send(_index(*listed)),
        "/maps/good.xml.gz": _send(gzip.compress(_urls(*good), mtime=0)),
        "/maps/laughs.xml": _send(f"<!DOCTYPE urlset [{LAUGHS}]>".encode() + _urls(f"{site}&l9;")),
        "/maps/entity.xml": _send(entity.encode() + _urls(f"{site}/never/&x;")),
        "/maps/bomb.xml.gz": _send(gzip.compress(_urls(f"{site}/mapped") + bytes(60_000_000), 1)),
        "/maps/endless.xml": repeat(
            b"HTTP/1.1 200 OK\r\n\r\n<urlset>", f"<url><loc>{site}/mapped</loc></url>".encode() * 1000
        ),
        "/maps/cut.xml": _send(_urls(f"{site}/mapped")[:-10]),
        "/maps/page.xml": _send(b"<!doctype html><title>no map</title><a href=/never/page>x</a>"),
        **{f"/maps/deep/{n}.xml": _send(_index(f"{site}/maps/deep/{n + 1}.xml")) for n in range(1, 20)},
    }


def named(site: str, canary: int) -> bytes:
    """Lines of a robots.txt that name sitemaps."""
    places = [
        f"{site}/maps/index.xml",
        f"http://127.0.0.1:{canary}/sitemap.xml",
        "file:///etc/passwd",
        "/maps/relative.xml",
    ]
    return "".join(f"Sitemap: {place}\n" for place in places).encode()


def _send(body: bytes) -> Script:
    return send(reply(200, body, [XML]))


def _urls(*urls: str) -> bytes:
    return f"<urlset {SPACE}>{''.join(f'<url><loc>{url}</loc></url>' for url in urls)}</urlset>".encode()


def _index(*urls: str) -> bytes:
    listed = "".join(f"<sitemap><loc>{url}</loc></sitemap>" for url in urls)
    return f"<sitemapindex {SPACE}>{listed}</sitemapindex>".encode()
