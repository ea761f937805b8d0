"""The contract of analyzers: what they need, what they get, and what they yield.

An analyzer is pure: it gets the columns of a whole crawl and yields batches of findings. It may raise any exception:
the analysis then keeps the findings of the other analyzers and runs the failed one again. If its attribute `optional`
is true, its failure does not fail the analysis.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from shoal.audit.finding import FindingCode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shoal.audit.details import PageDetails
    from shoal.audit.site import Site

DetailColumn = Callable[["PageDetails"], Any]
"""Computes the value of a detail column from the details of one page. It must not fail for any page."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The data an analyzer reads. Nothing else is loaded for it.

    `pages`: columns of the page record. `details`: detail columns, each with the function that computes it. `links`:
    the link graph. `sitemap`: the pages that sitemaps list. `blocked`: URLs that robots.txt forbids. `robots`: the
    robots.txt of each host. `probes`: paths to request from each host, such as `/llms.txt`. `previous`: the page
    columns of the baseline's crawl. `urls`: a function that returns further URLs to request. It is called when
    everything else is loaded. The URLs are requested until the time is up.
    """

    pages: Sequence[str] = ()
    details: Mapping[str, DetailColumn] = field(default_factory=dict)
    links: bool = False
    sitemap: bool = False
    blocked: bool = False
    robots: bool = False
    probes: Sequence[str] = ()
    previous: bool = False
    urls: Callable[["Site"], Iterable[str]] = lambda site: ()


@dataclass(frozen=True, slots=True)
class Found:
    """Findings of one code, in columns: `evidence(i)` returns the evidence of the i-th finding; it is called only for
    findings that are stored.

    `pages` are page ids, which are indexes into the page columns. For findings that concern no page of the crawl,
    `urls` replaces `pages`: it has a URL or None for each finding. `identity(i)` tells apart several findings of one
    code on one page.
    """

    code: str
    pages: "NDArray[np.intp] | None" = None
    urls: Sequence[str | None] = ()
    evidence: Callable[[int], dict[str, Any]] = lambda place: {}
    identity: Callable[[int], str] = lambda place: ""

    def __len__(self) -> int:
        return len(self.urls) if self.pages is None else len(self.pages)


class Analyzer(Protocol):
    """Finds one group of problems."""

    @property
    def name(self) -> str:
        """The analyzer's name, unique among all analyzers."""
        ...

    @property
    def codes(self) -> Sequence[FindingCode]:
        """All codes that the analyzer may report."""
        ...

    @property
    def needs(self) -> Needs: ...

    def analyze(self, site: "Site") -> Iterable[Found]:
        """Yield findings. Runs in its own thread, once per analysis."""
        ...
