"""What a person or a program on this machine asks for: a new crawl, or an old one to go on with."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from shoal.app import App
from shoal.base.errors import InvalidInput
from shoal.base.ids import CrawlId
from shoal.base.text import shorten
from shoal.crawl.crawl import Crawl, CrawlConfig
from shoal.crawl.crawls import seeds_of
from shoal.crawl.credentials import SECRET_FIELDS

ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Wish:
    """A crawl that is wanted here. `trusted`: whoever asks named the seeds, so that private ones are open to it."""

    config: CrawlConfig | None = None
    crawl_id: CrawlId | None = None
    resume: str | None = None
    trusted: bool = True

    async def find(self, app: App) -> Crawl:
        """The crawl: stored now, or found by its id."""
        if self.config is None:
            return (await app.crawls.get(self.resume or "")).crawl
        named = list(seeds_of(self.config)) if self.trusted else None
        return await app.crawls.submit(self.config, crawl_id=self.crawl_id, named=named, here=True)


def read_id(text: str, called: str) -> CrawlId:
    if not ID.fullmatch(text):
        raise InvalidInput(called, f"{shorten(text)!r} is no id", "use 1 to 64 letters, digits, `_`, `.` and `-`")
    return CrawlId(text)


def read_config(values: Mapping[str, Any], called: Callable[[str], str] = str) -> CrawlConfig:
    """The options of a crawl; the first that cannot be taken is refused by the name that the caller knows it by."""
    for name in values:
        if name not in CrawlConfig.model_fields:
            raise InvalidInput(called(name), "is not an option of a crawl", _nearest(name))
    try:
        config = CrawlConfig.model_validate(dict(values))
    except ValidationError as error:
        raise _refused(error, called) from None
    seeds_of(config)
    return config


def _nearest(name: str) -> str:
    close = get_close_matches(name, CrawlConfig.model_fields, n=1, cutoff=0.5)
    return f"the nearest one is {close[0]}" if close else f"use one of {', '.join(CrawlConfig.model_fields)}"


def _refused(error: ValidationError, called: Callable[[str], str]) -> InvalidInput:
    first = error.errors(include_url=False, include_context=False)[0]
    field, *places = first["loc"]
    is_secret = field in SECRET_FIELDS
    name = called(str(field)) + (_place(places) if is_secret else "")
    if first["type"] == "value_error":  # our own words
        return InvalidInput(name, first["msg"].removeprefix("Value error, "), "correct it")
    if is_secret:
        return InvalidInput(name, "cannot be taken as it is", first["msg"])
    wanted = first["msg"].replace("Input should", "it should", 1)
    return InvalidInput(name, f"cannot be {shorten(first['input'])!r}", wanted[:1].lower() + wanted[1:])


def _place(places: list[int | str]) -> str:
    """Where inside an option, as its author would write it."""
    return "".join(f"[{place}]" if isinstance(place, int) else f".{place}" for place in places)
