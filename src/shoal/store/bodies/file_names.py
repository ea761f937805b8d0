"""The names of files with kept bodies: one folder per crawl, one name per writer, safe wherever they lie."""

import re

from shoal.base.ids import new_id
from shoal.pages.bodies import BodyLocation

_SAFE = re.compile(r"crawl-[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_-]{1,64}\.warc\.gz")


def folder_of(crawl_id: str) -> str:
    """Never `.` or `..`, which are ids like any other."""
    return f"crawl-{crawl_id}"


def new_file(crawl_id: str) -> str:
    return f"{folder_of(crawl_id)}/{new_id('seg')}.warc.gz"


def is_safe(place: BodyLocation) -> bool:
    """Whether a place can be one of ours: rows also come out of dumps, which anybody may have written."""
    return _SAFE.fullmatch(place.file) is not None and place.offset >= 0 and place.length > 0
