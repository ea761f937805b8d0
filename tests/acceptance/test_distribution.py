"""The wheel and the source distribution: contents, metadata, and installations on the oldest and the newest Python."""

import re
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

import shoal
from tests.support.built_package import ROOT, Environment, newest_python, run, tool
from tests.support.site import Site

pytestmark = pytest.mark.exhaustive

VERSION = shoal.__version__
INFO = f"shoal-{VERSION}.dist-info"
DESCRIBED = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return dist / f"shoal-{VERSION}-py3-none-any.whl"


@pytest.fixture(scope="module")
def sdist(dist: Path) -> Path:
    return dist / f"shoal-{VERSION}.tar.gz"


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return message_from_string(archive.read(f"{INFO}/METADATA").decode())


def source() -> set[str]:
    """Return every file below src/ but bytecode."""
    files = (path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT / "src")) for path in files}


def test_nothing_else_is_built(dist: Path, wheel: Path, sdist: Path) -> None:
    assert set(dist.iterdir()) == {wheel, sdist}


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    ours = {name for name in names if not name.startswith(f"{INFO}/")}
    assert ours == source()
    assert {Path(name).suffix for name in ours} >= {".sql", ".html", ".css", ".js", ".toml"}
    assert "shoal/py.typed" in ours
    own = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert names - ours == {f"{INFO}/{name}" for name in own}


def test_the_source_distribution_has_what_the_wheel_is_built_from_and_the_documentation(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name.removeprefix("src/") for name in names if name.startswith("src/")} == source()
    tops = {name.partition("/")[0] for name in names}
    assert tops <= {
        "src",
        "docs",
        "tools",
        "CHANGELOG.md",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "pyproject.toml",
        ".gitignore",
    }
    assert {"docs/index.md", "LICENSE", "CHANGELOG.md"} <= names
    assert {name for name in names if name.startswith("tools/")} == {"tools/package_metadata.py"}


def test_checkers_of_packages_find_nothing(wheel: Path, sdist: Path) -> None:
    run(tool("twine"), "check", "--strict", wheel, sdist)
    run(tool("check-wheel-contents"), wheel)


def test_the_metadata_says_what_the_project_file_says(metadata: Message, wheel: Path) -> None:
    assert metadata["Name"] == "shoal"
    assert metadata["Version"] == VERSION
    assert metadata["Requires-Python"] == DESCRIBED["project"]["requires-python"]
    extras = DESCRIBED["project"]["optional-dependencies"]
    assert set(metadata.get_all("Provides-Extra", [])) == set(extras)
    plain = {one for one in metadata.get_all("Requires-Dist", []) if "extra ==" not in one}
    assert {name_of(one) for one in plain} == {name_of(one) for one in DESCRIBED["project"]["dependencies"]}
    with zipfile.ZipFile(wheel) as archive:
        points = archive.read(f"{INFO}/entry_points.txt").decode()
    assert points == "[console_scripts]\nshoal = shoal.cli.main:main\n"


def test_no_address_is_in_the_metadata_until_there_is_one(metadata: Message) -> None:
    address = DESCRIBED["tool"]["hatch"]["metadata"]["hooks"]["custom"]["address"]
    assert bool(metadata.get_all("Project-URL")) == bool(address)


def test_links_of_the_description_are_absolute_once_the_project_has_an_address(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE", "tools/package_metadata.py", "src/shoal/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    project = tmp_path / "pyproject.toml"
    project.write_text(project.read_text().replace('address = ""', 'address = "https://forge.example/shoal"'))
    built = run(sys.executable, "-m", "hatchling", "metadata", cwd=tmp_path)
    assert '"Changelog": "https://forge.example/shoal/blob/main/CHANGELOG.md"' in built
    assert "](https://forge.example/shoal/blob/main/docs/" in built
    assert "](https://forge.example/shoal/raw/main/docs/images/" in built
    assert not re.search(r"\]\((?!https?://|#)", built)


def test_the_version_is_in_one_place_and_the_changelog_is_ready_for_the_next() -> None:
    assert DESCRIBED["project"]["dynamic"] == ["version", "readme", "urls"]
    assert not (ROOT / "src/shoal/_version.py").exists()
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"


@pytest.mark.parametrize("age", ["oldest", "newest"])
def test_the_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path, age: str) -> None:
    python = sys.executable if age == "oldest" else newest_python()
    if python is None:
        pytest.skip("this machine has no Python that is newer than 3.11")
    installed = Environment(tmp_path / "environment", wheel, "all", python=python)
    assert installed.run("--version", cwd=tmp_path).stdout == f"shoal {VERSION}\n"
    assert import_every_module(installed) == "[]"
    with Site(pages=5) as site:
        done = installed.run("crawl", site.address, "--output", "pages.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "pages.jsonl").read_text().splitlines()) == 5


def import_every_module(installed: Environment) -> str:
    """Return the modules that cannot be imported, with their errors."""
    code = (
        "import pkgutil, importlib, shoal\n"
        "bad = []\n"
        "for one in pkgutil.walk_packages(shoal.__path__, 'shoal.'):\n"
        "    try:\n"
        "        if not one.name.endswith('__main__'): importlib.import_module(one.name)\n"
        "    except Exception as error: bad.append((one.name, repr(error)))\n"
        "print(bad)"
    )
    return run(installed.python, "-I", "-c", code).strip()


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement)[0]
