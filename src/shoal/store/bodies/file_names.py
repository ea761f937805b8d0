"""File names of stored bodies: one folder per crawl, one name per writer, safe on any backend."""

import re

from shoal.base.ids import new_id
from shoal.pages.bodies import BodyLocation

_SAFE = re.compile(r"crawl-[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_-]{1,64}\.warc\.gz")


def folder_of(crawl_id: str) -> str:
    """Return the folder name of a crawl. Never `.` or `..`, which are valid crawl ids."""
    return f"crawl-{crawl_id}"


def new_file(crawl_id: str) -> str:
    return f"{folder_of(crawl_id)}/{new_id('seg')}.warc.gz"


def is_safe(place: BodyLocation) -> bool:
    """Return whether a location can be one of ours. Rows are also restored from dumps, which are untrusted input."""
    return _SAFE.fullmatch(place.file) is not None and place.offset >= 0 and place.length > 0
