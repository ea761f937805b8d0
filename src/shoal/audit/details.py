"""Read the stored details of pages, but not the links and link texts, which are a large part of the data."""

from typing import Any, Final, cast

import msgspec
from isal import isal_zlib

from shoal.extract.details import LARGEST, split


class HeadingFacts(msgspec.Struct, gc=False):
    level: int
    text: str


class AlternateFacts(msgspec.Struct, gc=False):
    lang: str
    url: str


class ImageFacts(msgspec.Struct, gc=False):
    url: str
    alt: str | None


class ResourceFacts(msgspec.Struct, gc=False):
    kind: str
    url: str


class CookieFacts(msgspec.Struct, gc=False):
    name: str
    secure: bool = False
    http_only: bool = False
    same_site: str | None = None
    persistent: bool = False


class PageDetails(msgspec.Struct, gc=False):
    """The details of a page as analyzers see them: see `extract.details.Details`."""

    headers: dict[str, str] = {}
    cookies: list[CookieFacts] = []
    doctype: bool = False
    base: str | None = None
    titles: list[str] = []
    canonicals: list[str] = []
    metas: dict[str, str] = {}
    headings: list[HeadingFacts] = []
    hreflang: list[AlternateFacts] = []
    images: list[ImageFacts] = []
    resources: list[ResourceFacts] = []
    json_ld: list[Any] = []
    json_ld_errors: list[str] = []
    microdata: list[Any] = []
    sketch: str = ""


_BROKEN: Final = (cast(type[Exception], isal_zlib.error), msgspec.MsgspecError)

_decode = msgspec.json.Decoder(PageDetails).decode


def read_page_details(blob: bytes) -> PageDetails:
    """Read the details of one page; raise `ValueError` for anything else."""
    try:
        return _decode(isal_zlib.decompressobj().decompress(split(blob)[0], LARGEST))
    except _BROKEN as error:
        raise ValueError(f"it is not a packed details record ({error})") from None
