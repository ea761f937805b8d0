"""The registry of analyzers: each sees every stored page of a crawl once and then returns its findings. Analyzers are
pure: the same pages in the same order give the same findings."""

from collections.abc import Callable, Mapping
from typing import Protocol

from shoal.audit.analysis import Finding
from shoal.audit.overview import Overview
from shoal.pages.page import Page


class Analyzer(Protocol):
    name: str

    def see(self, page: Page) -> None: ...

    def findings(self) -> list[Finding]: ...


ANALYZERS: Mapping[str, Callable[[], Analyzer]] = {"overview": Overview}
