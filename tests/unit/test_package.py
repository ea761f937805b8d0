"""The public names of the package: all of them exist, and none is loaded before it is used."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.library import crawl_run

SRC = Path(__file__).parents[2] / "src"
HEAVY = ("asyncio", "click", "pycurl", "msgspec", "sqlite3", "starlette", "typing", "uvloop")


@pytest.mark.parametrize("name", shoal.__all__)
def test_every_promised_name_is_there(name: str) -> None:
    assert getattr(shoal, name) is not None
    assert name in dir(shoal)


def test_a_name_that_is_not_public_cannot_be_imported() -> None:
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        shoal.nothing_of_the_kind  # type: ignore[attr-defined]  # noqa: B018


def test_crawl_is_both_a_package_and_a_function() -> None:
    from shoal import crawl
    from shoal.crawl import states

    assert callable(crawl)
    assert states.CrawlState.PAUSED == "paused"
    assert isinstance(crawl("http://a.example/"), shoal.CrawlRun)


def test_the_verb_takes_what_the_library_says() -> None:
    assert list(inspect.signature(crawl_run.crawl).parameters) == [
        "seeds", "store", "resume", "id", "trust_seeds", "options",
    ]  # fmt: skip


def test_importing_the_package_imports_nothing_else() -> None:
    code = f"import sys; import shoal; print([name for name in {HEAVY!r} if name in sys.modules])"
    words = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(SRC)!r}); {code}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_that_is_read_is_run() -> None:
    """No pickles, no marshal, no YAML, and nothing that compiles text: what comes from outside stays data."""
    banned = {"pickle", "marshal", "shelve", "yaml", "dill"}
    for file in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert not banned & {name.name.partition(".")[0] for name in node.names}, file
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] not in banned, file
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec", "compile"}, file
