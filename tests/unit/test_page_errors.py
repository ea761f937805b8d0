"""The table of page errors: every code that the tree can give a page is in it, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import shoal
from shoal.base.url import UrlRefusal
from shoal.egress import curl as curl_errors
from shoal.egress.exchange import BLOCKED
from shoal.web.error_codes import PAGE_ERRORS
from tests.support.hostile import answers

SOURCE = Path(shoal.__file__).parent
PLACES = ("egress", "extract", "hosts", "web", "page_jobs", "crawl")
MAKERS = {"Failure", "DecodingFault", "RobotsUnavailable", "UrlRefusal", "_bad_answer", "_stopped"}
CODE = re.compile(r"[a-z]+(?:_[a-z0-9]+)+")
# Such a URL never enters a frontier; a redirect to one has its own code. The others are limits of the browser's proxy:
# they concern the requests that a page makes, not the page.
NO_PAGES = {"scheme_not_allowed", "not_allowed", "session_too_large", "too_many_connections"}


def codes_in(tree: ast.AST) -> Iterator[str]:
    """Return the error codes in a module: those passed to errors or records."""
    named = named_codes(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in MAKERS and node.args:
            yield from constants(node.args[0])
            yield from (named[name] for name in names(node.args[0]) if name in named)
        elif isinstance(node, ast.Assign) and "error_code" in ast.unparse(node.targets[0]):
            yield from constants(node.value)
            yield from (named[name] for name in names(node.value) if name in named)


def named_codes(tree: ast.AST) -> dict[str, str]:
    """Codes that are defined as constants of the module."""
    given = [node for node in ast.iter_child_nodes(tree) if isinstance(node, ast.Assign | ast.AnnAssign)]
    pairs = [(node.targets[0] if isinstance(node, ast.Assign) else node.target, node.value) for node in given]
    return {
        target.id: value.value
        for target, value in pairs
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str)
    }


def names(node: ast.AST) -> list[str]:
    return [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]


def constants(node: ast.AST) -> Iterator[str]:
    texts = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str))
    return (text for text in texts if CODE.fullmatch(text))


def written() -> set[str]:
    files = [file for place in PLACES for file in (SOURCE / place).rglob("*.py")]
    found = {code for file in files for code in codes_in(ast.parse(file.read_text()))}
    return (
        found
        | set(constants(ast.parse(Path(curl_errors.__file__).read_text())))
        | {refusal.code for refusal in UrlRefusal}
    )


def test_every_code_that_is_written_down_is_in_the_table_and_no_other() -> None:
    assert {"dns_error", "redirect_loop", "decompressed_too_large", "robots_unreachable", "invalid_data"} <= written()
    assert (written() | BLOCKED | {"unexpected"}) - NO_PAGES == PAGE_ERRORS.keys()


def test_every_code_of_the_hostile_site_is_in_the_table() -> None:
    played = answers.wire() | answers.floods() | answers.encodings() | answers.redirects(1)
    assert {code for code, _ in played.values()} <= PAGE_ERRORS.keys()


def test_the_documented_retries_match_the_transport() -> None:
    for code, again, _ in curl_errors._CODES.values():
        assert not again or PAGE_ERRORS[code].tried_again, code
