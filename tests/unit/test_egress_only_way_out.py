"""A search of the whole tree: nothing but egress opens a connection (S1)."""

import ast
from pathlib import Path

import pytest

import shoal

SOURCE = Path(shoal.__file__).parent

CLIENTS = {
    "aiohttp",
    "asyncpg",
    "curl_cffi",
    "ftplib",
    "http.client",
    "httplib2",
    "httpx",
    "impit",
    "niquests",
    "poplib",
    "primp",
    "psycopg",
    "pycurl",
    "redis",
    "requests",
    "rnet",
    "smtplib",
    "telnetlib",
    "tornado.httpclient",
    "urllib.request",
    "urllib3",
    "websockets",
    "wreq",
    "xmlrpc.client",
}
CALLS = {
    "asyncio.open_connection",
    "asyncio.open_unix_connection",
    "socket.create_connection",
    "socket.socket",
}
METHODS = {"create_connection", "create_datagram_endpoint", "sock_connect", "connect_ex"}

# Besides egress: stores are reached by their drivers, and a server opens the socket that others connect to.
ALLOWED = {
    "egress/curl.py": {"pycurl"},
    "egress/local.py": {"socket"},
    "egress/slot.py": {"socket"},
    "store/": {"asyncpg", "redis"},
    "cli/serve.py": {"socket"},
}


def ways_out(source: str) -> set[str]:
    """Names in a module that could open a connection."""
    found: set[str] = set()
    for node in ast.walk(_Running().visit(ast.parse(source))):
        found |= {name for name in names_in(node) if is_way_out(name)}
    return found


class _Running(ast.NodeTransformer):
    """Leaves out what only a type checker reads."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def names_in(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    if isinstance(node, ast.Call | ast.ClassDef):
        callees = [node.func] if isinstance(node, ast.Call) else node.bases
        return [ast.unparse(callee) for callee in callees]
    return []


def is_way_out(name: str) -> bool:
    is_client = any(name == client or name.startswith(client + ".") for client in CLIENTS)
    return is_client or name in CALLS or name.rpartition(".")[2] in METHODS


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_no_module_opens_a_connection_of_its_own(path: Path) -> None:
    name = path.relative_to(SOURCE).as_posix()
    allowed = set().union(*(roots for place, roots in ALLOWED.items() if name.startswith(place)))
    assert not {way for way in ways_out(path.read_text()) if way.partition(".")[0] not in allowed}


@pytest.mark.parametrize(
    "source",
    [
        "import httpx",
        "import urllib.request as r",
        "from urllib import request",
        "from http.client import HTTPConnection",
        "import pycurl",
        "async def f():\n    await asyncio.open_connection('a', 1)",
        "from asyncio import open_connection",
        "s = socket.create_connection(('a', 1))",
        "class A(socket.socket): ...",
        "loop.create_connection(factory, 'a', 1)",
    ],
)
def test_the_search_finds_every_known_way(source: str) -> None:
    assert ways_out(source)


def test_the_search_leaves_harmless_names_alone() -> None:
    assert not ways_out("import urllib.parse\nfrom http import HTTPStatus\nconnect()\nimport requests_like")
