"""Crawls of sites: lifecycle, frontier, scope, engine. Called, `shoal.crawl(…)` is the library's verb.

The package's public verb and this room have one name, and importing a room puts it into the package under its name. So
the room can be called, and hands the call to `shoal.library`, which stands above it and is imported only then.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallableRoom(ModuleType):
    def __call__(self, *seeds: str, **options: Any) -> Any:
        return import_module("shoal.library").crawl(*seeds, **options)


sys.modules[__name__].__class__ = _CallableRoom
