"""The parts of the package's metadata that depend on where the project is published: URLs, and the links of the README.

The address is one constant in pyproject.toml, and empty until there is one. Without it, links stay relative.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}


class PublishedAt(MetadataHookInterface):
    """`address` in pyproject.toml: where the repository is, without a slash at the end."""

    def update(self, metadata: dict[str, Any]) -> None:
        address: str = self.config["address"]
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, address) if address else text}
        files = {name: f"{address}/blob/main/{page}" for name, page in PAGES.items()}
        metadata["urls"] = {"Repository": address, **files} if address else {}


def absolute(text: str, address: str) -> str:
    """Return Markdown with absolute links to files of the repository."""

    def link(match: re.Match[str]) -> str:
        mark, label, place = match.groups()
        return f"{mark}[{label}]({address}/{'raw' if mark else 'blob'}/main/{place})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)", link, text)
