"""The parts of the package metadata that depend on where the project is published: URLs, and the links in the README.

The address of the repository is one constant in pyproject.toml. It is empty until the project is published; while it is
empty, links stay relative.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}


class PublishedAt(MetadataHookInterface):
    """Adds the metadata that contain `address` in pyproject.toml: the URL of the repository, without a final slash."""

    def update(self, metadata: dict[str, Any]) -> None:
        address: str = self.config["address"]
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, address) if address else text}
        files = {name: f"{address}/blob/main/{page}" for name, page in PAGES.items()}
        metadata["urls"] = {"Repository": address, **files} if address else {}


def absolute(text: str, address: str) -> str:
    """Return Markdown whose links to files of the repository are absolute."""

    def link(match: re.Match[str]) -> str:
        mark, label, place = match.groups()
        return f"{mark}[{label}]({address}/{'raw' if mark else 'blob'}/main/{place})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)", link, text)
