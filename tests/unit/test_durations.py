"""A number that is a duration says its unit: no reader has to look for a comment."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import shoal

NOUNS = frozenset(
    [
        "backoff",
        "delay",
        "elapsed",
        "every",
        "grace",
        "interval",
        "patience",
        "pause",
        "period",
        "timeout",
        "ttl",
        "wait",
    ]
)
NUMBER = re.compile(r"\b(float|int)\b")
ELSEWHERE = {
    "plan/importer.py PAUSE",  # a number of lines
}


def numbers(tree: ast.Module) -> Iterator[str]:
    """Yield the names of parameters, fields and constants that are numbers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            if NUMBER.search(text := ast.unparse(node.annotation)) and "timedelta" not in text:
                yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name | ast.Attribute):
            if NUMBER.search(text := ast.unparse(node.annotation)) and "timedelta" not in text:
                yield name_of(node.target)
        elif isinstance(node, ast.Assign) and type(getattr(node.value, "value", None)) in (int, float):
            yield from (name_of(one) for one in node.targets if isinstance(one, ast.Name | ast.Attribute))


def name_of(target: ast.Name | ast.Attribute) -> str:
    return target.id if isinstance(target, ast.Name) else target.attr


def test_every_number_that_is_a_duration_says_that_it_is_seconds() -> None:
    folder = Path(shoal.__file__).parent
    found = {
        f"{path.relative_to(folder).as_posix()} {name}"
        for path in folder.rglob("*.py")
        if "_pb2" not in path.name
        for name in numbers(ast.parse(path.read_text()))
        if name.lower().rpartition("_")[2] in NOUNS
    }
    assert found - ELSEWHERE == set()
    assert ELSEWHERE - found == set()
