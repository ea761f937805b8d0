"""All analyzers: the built-in ones, and those of installed packages."""

from collections.abc import Callable, Mapping

from shoal.audit.analyzer import Analyzer
from shoal.audit.analyzers.responses import Responses

BUILT_IN: Mapping[str, Callable[[], Analyzer]] = {"responses": Responses}
