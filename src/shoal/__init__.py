"""Shoal, a self-hosted crawl platform. The public interface of the library. Importing it is cheap: each name is loaded
on first use.

async for page in shoal.crawl("https://example.com/"):
    print(page.status, page.url, page.title)
"""

__version__ = "0.1.0"

__all__ = ["BodyNotKept", "CrawlRun", "Link", "Page", "ShoalError", "__version__", "crawl", "fetch", "open"]

TYPE_CHECKING = False  # type checkers treat it as true; importing `typing` would slow down `--version` by a third
if TYPE_CHECKING:
    from shoal.base.errors import BodyNotKept as BodyNotKept
    from shoal.base.errors import ShoalError as ShoalError
    from shoal.extract.links import Link as Link
    from shoal.library.crawl_run import CrawlRun as CrawlRun
    from shoal.library.crawl_run import crawl as crawl
    from shoal.library.crawl_run import open as open  # noqa: A004 - called as `shoal.open`
    from shoal.library.fetch import fetch as fetch
    from shoal.library.page import Page as Page

_HOMES = {
    "BodyNotKept": "shoal.base.errors",
    "CrawlRun": "shoal.library.crawl_run",
    "Link": "shoal.extract.links",
    "Page": "shoal.library.page",
    "ShoalError": "shoal.base.errors",
    "fetch": "shoal.library.fetch",
    "open": "shoal.library.crawl_run",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "crawl":  # the package of that name, which can be called
        return import_module("shoal.crawl")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
