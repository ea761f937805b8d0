"""The list of built-in analyzers, made from the settings."""

from collections.abc import Callable

from shoal.audit.analyzer import Analyzer
from shoal.audit.analyzers.canonicals import Canonicals
from shoal.audit.analyzers.cookies import Cookies
from shoal.audit.analyzers.depth import Depth
from shoal.audit.analyzers.descriptions import Descriptions
from shoal.audit.analyzers.duplicates import Duplicates
from shoal.audit.analyzers.headings import Headings
from shoal.audit.analyzers.hreflang import Hreflang
from shoal.audit.analyzers.images import Images
from shoal.audit.analyzers.indexability import Indexability
from shoal.audit.analyzers.links import Links
from shoal.audit.analyzers.llms_txt import LlmsTxt
from shoal.audit.analyzers.mixed_content import MixedContent
from shoal.audit.analyzers.orphans import Orphans
from shoal.audit.analyzers.redirects import Redirects
from shoal.audit.analyzers.responses import Responses
from shoal.audit.analyzers.robots_txt import RobotsTxt
from shoal.audit.analyzers.security_headers import SecurityHeaders
from shoal.audit.analyzers.soft_404 import Soft404
from shoal.audit.analyzers.speed import Speed
from shoal.audit.analyzers.structured_data import StructuredData
from shoal.audit.analyzers.thin_content import ThinContent
from shoal.audit.analyzers.titles import Titles
from shoal.audit.analyzers.urls import Urls

BUILT_IN: tuple[Callable[[], Analyzer], ...] = (
    Links, Redirects, Responses, Titles, Descriptions, Headings, Canonicals, Indexability, Hreflang, Duplicates,
    Orphans, MixedContent, SecurityHeaders, Cookies, Images, StructuredData, Soft404, Urls, RobotsTxt, LlmsTxt,
    Speed, Depth, ThinContent,
)  # fmt: skip


def built_in() -> list[Analyzer]:
    """Return all built-in analyzers."""
    return [make() for make in BUILT_IN]
