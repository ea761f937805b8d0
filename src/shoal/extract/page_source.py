"""One answered page as everything reads it that goes beyond the facts of its record: bytes, text and tree, each made
once, when it is first asked for."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from turbohtml import Document

from shoal.extract.encoding import decode
from shoal.extract.tree import parse

HeaderPairs = Sequence[tuple[str, str]]


class Source:
    """A page's answer. Reading it changes nothing; whoever changes the tree, changes it for those who come after."""

    def __init__(
        self,
        url: str,
        body: bytes,
        content_type: str | None = None,
        *,
        status: int = 200,
        headers: HeaderPairs = (),
        http_version: str = "",
    ) -> None:
        self.url = url  # where the page was found, after its redirects
        self.body = body
        self.content_type = content_type
        self.status = status
        self.headers = headers
        self.http_version = http_version
        self.data: dict[str, Any] = {}  # what was taken from the page so far

    @cached_property
    def text(self) -> str:
        """The body as characters."""
        return decode(self.body, self.content_type)[0]

    @cached_property
    def document(self) -> Document:
        """The body as a tree, without the content of `<template>`."""
        return parse(self.text)[0]
