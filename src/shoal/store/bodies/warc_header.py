"""The header record of a segment, which makes each file a valid WARC file on its own."""

from pathlib import PurePosixPath

from shoal import __version__
from shoal.pages.warc import info_member


def opening(name: str, crawl_id: str, at: int) -> bytes:
    facts = [("software", f"Shoal/{__version__}"), ("isPartOf", crawl_id)]
    return info_member(PurePosixPath(name).name, at, facts)
