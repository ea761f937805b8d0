"""Crawls of sites: lifecycle, frontier, scope, engine. The module itself is callable as `shoal.crawl(…)`.

The library function and this package share a name, and importing a subpackage sets it as an attribute of `shoal`. So
this module is made callable. A call forwards to `shoal.library`, which depends on this package and is therefore
imported only when the module is called.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    def __call__(self, *seeds: str, **options: Any) -> Any:
        return import_module("shoal.library.crawl_run").crawl(*seeds, **options)


sys.modules[__name__].__class__ = _CallableModule
