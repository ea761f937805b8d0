"""A search of the whole tree: nothing but egress opens a connection."""

import ast
from pathlib import Path

import pytest

import shoal

SOURCE = Path(shoal.__file__).parent

CLIENTS = {
    "aiobotocore",
    "aiodns",
    "aiohttp",
    "aioquic",
    "aiosmtplib",
    "asyncpg",
    "boto3",
    "botocore",
    "curl_cffi",
    "dns",
    "fsspec",
    "ftplib",
    "grpc",
    "http.client",
    "httpcore",
    "httplib2",
    "httpx",
    "imaplib",
    "impit",
    "multiprocessing.connection",
    "niquests",
    "paramiko",
    "playwright",
    "poplib",
    "primp",
    "psycopg",
    "pyarrow.fs",
    "pycares",
    "pycurl",
    "redis",
    "requests",
    "rnet",
    "selenium",
    "smtplib",
    "socket",
    "subprocess",
    "telnetlib",
    "tornado.httpclient",
    "trafilatura.downloads",
    "trafilatura.fetch_url",
    "urllib.request",
    "urllib3",
    "webbrowser",
    "websocket",
    "websockets",
    "wreq",
    "xmlrpc.client",
}
IN_CLIENTS = tuple(f"{client}." for client in CLIENTS)
METHODS = {
    "connect_ex",
    "create_connection",
    "create_datagram_endpoint",
    "create_subprocess_exec",
    "create_subprocess_shell",
    "fetch_url",
    "getaddrinfo",
    "gethostbyname",
    "open_connection",
    "open_unix_connection",
    "popen",
    "sock_connect",
    "subprocess_exec",
    "subprocess_shell",
    "system",
    "urlopen",
    "urlretrieve",
}

# Besides egress: stores are reached by their drivers, nodes reach their controller by gRPC, a server opens the socket
# that others connect to, a worker starts children, and some want only the machine's name or the name of an error.
ALLOWED = {
    "cli/demo.py": {"asyncio", "socket"},  # the workers of its fleet are processes
    "compat/queues.py": {"redis"},  # a client of the server that the operator named, for the caller's own code
    "process/http.py": {"socket"},
    "process/controller.py": {"socket"},
    "egress/curl.py": {"pycurl"},
    "egress/address.py": {"socket"},
    "egress/pinning_proxy/connections.py": {"asyncio"},
    "egress/resolver.py": {"socket"},
    "egress/curl_handle.py": {"pycurl", "socket"},
    "egress/transport.py": {"pycurl"},
    # The control plane: a worker dials the controller that its operator named, and nothing else.
    "fleet/control_client.py": {"grpc"},
    "fleet/control_server.py": {"grpc"},
    "fleet/control_port.py": {"loop", "socket"},  # to the gRPC server of this process
    "fleet/wire/": {"grpc"},
    "audit/external.py": {"subprocess"},  # the commands of analyzers that the operator named
    "audit/process_guard.py": {"subprocess"},
    "web/browser.py": {"subprocess"},
    "extract/converter.py": {"asyncio"},  # large pages are converted by children of ours
    "serve/connections.py": {"socket"},
    "base/settings.py": {"socket"},
    "base/database/postgres.py": {"asyncpg"},
    "drivers/": {"redis"},
    "work/leases.py": {"socket"},
    "work/child_handle.py": {"asyncio"},
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
        return None if text_of(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def names_in(node: ast.AST) -> list[str]:
    """Return the names that a piece of code imports, calls or uses, including modules imported by a string."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    if isinstance(node, ast.Call):
        texts = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        callee = text_of(node.func)
        return [callee, *texts] if callee.endswith(("import_module", "__import__", "_library")) else [callee]
    if isinstance(node, ast.ClassDef):
        return [text_of(base) for base in node.bases]
    return []


def text_of(node: ast.expr) -> str:
    """Return the source of an expression. Most are names with dots, which `ast.unparse` takes long for."""
    names: list[str] = []
    place = node
    while isinstance(place, ast.Attribute):
        names.append(place.attr)
        place = place.value
    return ".".join([place.id, *reversed(names)]) if isinstance(place, ast.Name) else ast.unparse(node)


def is_way_out(name: str) -> bool:
    return name in CLIENTS or name.startswith(IN_CLIENTS) or name.rpartition(".")[2] in METHODS


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_no_module_opens_a_connection_of_its_own() -> None:
    found = {}
    for path in modules():
        name = path.relative_to(SOURCE).as_posix()
        allowed = set().union(*(roots for place, roots in ALLOWED.items() if name.startswith(place)))
        found[name] = {way for way in ways_out(path.read_text()) if way.partition(".")[0] not in allowed}
    assert len(found) > 300
    assert {name: ways for name, ways in found.items() if ways} == {}


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
        "import socket as s\ns.socket()",
        "from socket import socket as s",
        "import asyncio as a\nasync def f():\n    await a.open_connection('a', 1)",
        "importlib.import_module('httpx')",
        "__import__('urllib.request')",
        "loop.getaddrinfo('a', 1)",
        "import subprocess\nsubprocess.run(['curl'])",
        "os.system('curl a')",
        "from multiprocessing.connection import Client",
        "trafilatura.fetch_url('a')",
        "from pyarrow.fs import S3FileSystem",
    ],
)
def test_the_search_finds_every_known_way(source: str) -> None:
    assert ways_out(source)


def test_the_search_leaves_harmless_names_alone() -> None:
    assert not ways_out("import urllib.parse\nfrom http import HTTPStatus\nconnect()\nimport requests_like")
