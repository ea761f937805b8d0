"""What a stranger does first: the README, the first guide and the tutorial, word by word."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.reader import EXAMPLE, Reader, ports
from tests.support.servers import free_port
from tests.support.site import Site

ROOT = Path(__file__).parents[2]
NOT_IN_A_CLONE = shutil.ignore_patterns(".venv", ".git", ".*_cache", ".hypothesis", "__pycache__")
README, INSTALL = ROOT / "README.md", ROOT / "docs" / "guides" / "install.md"
FIRST_GUIDE, TUTORIAL = (ROOT / "docs" / "start" / name for name in ("five-minutes.md", "tutorial.md"))


@pytest.fixture
def site() -> Iterator[Site]:
    """A site of one page, like example.com."""
    with Site(pages=1) as site:
        yield site


def test_the_readme_and_the_first_guide_work_as_written(site: Site, tmp_path: Path) -> None:
    reader = Reader.in_folder(tmp_path, site.address)
    assert reader.read(README) >= 4
    assert reader.read(FIRST_GUIDE) >= 4


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What git would make of this checkout."""
    clone = tmp_path / "a clone"
    shutil.copytree(ROOT, clone, ignore=NOT_IN_A_CLONE)
    return clone


def reader_of(clone: Path, site: Site) -> Reader:
    """Return someone with an empty home and environment, who installs what they use."""
    home = clone.with_name("home")
    home.mkdir()
    shop, server = free_port(), free_port()
    env = {"HOME": str(home), "PYTHONPATH": "", "SHOAL_LISTEN": f"127.0.0.1:{server}"}
    reader = Reader(clone, ports(shop, server) | {EXAMPLE: site.address}, **env)
    reader.translate(clone / "examples")
    return reader


@pytest.mark.exhaustive
def test_a_fresh_clone_does_what_readme_and_tutorial_say_in_an_empty_home(site: Site, clone: Path) -> None:
    reader = reader_of(clone, site)
    for page in (README, FIRST_GUIDE, TUTORIAL):
        assert reader.read(page) >= 4


@pytest.mark.exhaustive
def test_the_commands_of_the_guide_to_installing_work_in_a_fresh_clone(site: Site, clone: Path) -> None:
    assert reader_of(clone, site).read(INSTALL) == 6
