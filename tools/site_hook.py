"""Adds pages and files from other folders of the repository to the documentation site, and changes links so that they
lead to these pages on the site. MkDocs calls the functions; see `mkdocs.yml`.
"""

import os.path
import re
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FROM_ELSEWHERE = {  # path on the site: path in the repository
    "CHANGELOG.md": ROOT / "CHANGELOG.md",
    "CONTRIBUTING.md": ROOT / "CONTRIBUTING.md",
    "SECURITY.md": ROOT / "SECURITY.md",
    "SKILL.md": ROOT / "SKILL.md",
    "images/favicon.svg": ROOT / "src/shoal/serve/static/shoal.svg",
}
ON_THE_SITE = {place: DOCS / name for name, place in FROM_ELSEWHERE.items()} | {ROOT / "README.md": DOCS / "index.md"}
CODE_OR_LINK = re.compile(r"^```.*?^```|`[^`\n]*`|(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", re.MULTILINE | re.DOTALL)
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]
ADDRESS = BUILD["metadata"]["hooks"]["custom"]["address"]  # URL of the repository; empty until the project is published
DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> None:
    for name, place in FROM_ELSEWHERE.items():
        files.append(File.generated(config, name, abs_src_path=str(place)))
    index = re.sub(r"\((?:docs/)?(\S+)\.md\)", r"(\1.html)", (ROOT / "llms.txt").read_text("utf-8"))
    files.append(File.generated(config, "llms.txt", content=index))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change the links of a page, and remove its diagrams: they would need a script from a different host, and the
    tables beside them have the same content."""
    here = FROM_ELSEWHERE.get(page.file.src_uri, DOCS / page.file.src_uri)
    return CODE_OR_LINK.sub(lambda found: _link(found, here, page.file.src_uri), DIAGRAM.sub("", markdown))


def _link(found: re.Match[str], here: Path, name: str) -> str:
    label, link = found.groups()
    if link is None or re.match(r"[a-z]+:|#", link):
        return found[0]
    path, hash_mark, anchor = link.partition("#")
    there = Path(os.path.normpath(here.parent / path))
    target = ON_THE_SITE.get(there, there)
    if not target.is_relative_to(DOCS):
        return f"[{label}]({ADDRESS}/blob/main/{there.relative_to(ROOT)})" if ADDRESS else label
    return f"[{label}]({os.path.relpath(target, (DOCS / name).parent)}{hash_mark}{anchor})"
