"""Log files by project: batches are appended whole, files are rotated by size, and any project name is safe."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.observe.logs import ProjectLogs, safe_name


def lines_in(folder: Path) -> list[str]:
    return [line for path in sorted(folder.glob("*.log*")) for line in path.read_text().splitlines()]


def test_lines_go_to_the_end_of_their_projects_file(tmp_path: Path) -> None:
    logs = ProjectLogs(tmp_path / "logs", 10_000, 2)
    logs.append("shop", [b"one", b"two"])
    logs.append("news", [b"other"])
    logs.append("shop", [b"three"])
    assert (tmp_path / "logs" / "shop.log").read_text() == "one\ntwo\nthree\n"
    assert (tmp_path / "logs" / "news.log").read_text() == "other\n"


def test_a_large_file_is_put_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    logs = ProjectLogs(tmp_path, 100, 2)
    for number in range(5):
        logs.append("shop", [f"{number}".encode() * 120])
    assert sorted(path.name for path in tmp_path.glob("shop*")) == ["shop.log.1", "shop.log.2"]
    assert (tmp_path / "shop.log.1").read_text().startswith("4")
    assert (tmp_path / "shop.log.2").read_text().startswith("3")


def test_many_writers_lose_nothing_when_the_file_is_put_aside(tmp_path: Path) -> None:
    def write(writer: int) -> None:
        logs = ProjectLogs(tmp_path, 2000, 1000)
        for number in range(50):
            logs.append("shop", [f"{writer}-{number}".ljust(60).encode()] * 2)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    found = [line.strip() for line in lines_in(tmp_path)]
    assert sorted(found) == sorted(f"{writer}-{number}" for writer in range(4) for number in range(50) for _ in "ab")


@pytest.mark.parametrize(
    ("project", "name"),
    [
        ("shop", "shop"),
        ("../../etc/passwd", "_.._.._etc_passwd"),
        ("..", "_.."),
        (".hidden", "_.hidden"),
        ("", "_"),
        ("a/b\x00c\nd", "a_b_c_d"),
        ("x" * 300, "x" * 100),
    ],
)
def test_the_name_of_a_project_is_not_a_path(project: str, name: str, tmp_path: Path) -> None:
    assert safe_name(project) == name
    ProjectLogs(tmp_path / "logs", 1000, 1).append(project, [b"line"])
    assert [path.name for path in (tmp_path / "logs").iterdir()] == [f"{name}.log"]


def test_an_unwritable_output_is_reported(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file, where the folder should be")
    with pytest.raises(OSError, match="logs"):
        ProjectLogs(tmp_path / "logs", 1000, 1).append("shop", [b"line"])
