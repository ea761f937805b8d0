"""All analyzers: built-in ones, installed ones, and external commands."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from shoal.audit.analyzer import Analyzer, Found, Needs
from shoal.audit.analyzer_run import AnalyzerError
from shoal.audit.analyzers.content import Descriptions, Duplicates, Headings, Images, ThinContent, Titles
from shoal.audit.analyzers.indexing import Canonicals, Hreflang, Indexability, LlmsTxt, StructuredData
from shoal.audit.analyzers.responses import Links, Redirects, Responses, RobotsTxt, Soft404, Speed
from shoal.audit.analyzers.security import Cookies, MixedContent, SecurityHeaders
from shoal.audit.analyzers.structure import Depth, Orphans, Urls
from shoal.audit.external import ExternalAnalyzer, ProcessLimits
from shoal.audit.finding import FindingCode
from shoal.audit.site import Site
from shoal.base.settings import AuditSettings
from shoal.base.text import clean

BUILT_IN: tuple[Callable[[], Analyzer], ...] = (
    Links, Redirects, Responses, Titles, Descriptions, Headings, Canonicals, Indexability, Hreflang, Duplicates,
    Orphans, MixedContent, SecurityHeaders, Cookies, Images, StructuredData, Soft404, Urls, RobotsTxt, LlmsTxt,
    Speed, Depth, ThinContent,
)  # fmt: skip


def built_in() -> list[Analyzer]:
    """Return all built-in analyzers."""
    return [make() for make in BUILT_IN]


GROUP: Final = "shoal.analyzers"


@dataclass(frozen=True)
class Unusable:
    """Stands for an analyzer that cannot be loaded, so that the analysis reports it."""

    name: str
    problem: str
    codes: Sequence[FindingCode] = ()
    needs: Needs = field(default_factory=Needs)

    def analyze(self, site: Site) -> Iterator[Found]:
        raise AnalyzerError(self.problem)


def installed() -> list[Analyzer]:
    """Return the analyzers of installed packages; an entry point is a class or function that returns an analyzer."""
    return [_load(point) for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)]


def external(settings: AuditSettings) -> list[Analyzer]:
    """Return the external analyzers of the settings."""
    limits = ProcessLimits(settings.command_timeout, settings.command_memory, settings.command_output)
    return [ExternalAnalyzer(command.name, command.words, limits) for command in settings.commands]


def _load(point: EntryPoint) -> Analyzer:
    try:
        analyzer: Any = point.load()()
        problem = _problem(point.name, analyzer)
    except (Exception, SystemExit) as error:
        return Unusable(point.name, f"It does not load ({type(error).__name__}: {clean(str(error), 200)}).")
    if problem is not None:
        return Unusable(point.name, problem)
    found: Analyzer = analyzer
    return found


def _problem(name: str, analyzer: Any) -> str | None:
    """Return what is wrong with an analyzer of another package."""
    if getattr(analyzer, "name", None) != name:
        return f"Its attribute name is {clean(str(getattr(analyzer, 'name', None)), 60)}, not that of its entry point."
    if not isinstance(getattr(analyzer, "needs", None), Needs) or not callable(getattr(analyzer, "analyze", None)):
        return "It has no needs, or no method analyze."
    foreign = [code.code for code in analyzer.codes if not code.code.startswith(f"{name}.")]
    return f"Its code {clean(foreign[0], 60)} does not begin with {name}." if foreign else None
