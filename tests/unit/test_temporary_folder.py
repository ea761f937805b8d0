"""Temporary folders, and the folders that killed processes left behind."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shoal.base.temporary_folder import TemporaryFolder

OWNER = """\
from shoal.base.temporary_folder import TemporaryFolder
folder = TemporaryFolder("killed-")
(folder.path / "grpc").touch()
print(folder.path, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_a_folder_is_private_and_is_removed_with_its_content(root: Path) -> None:
    with TemporaryFolder("demo-") as folder:
        (folder / "store").write_text("carp")
        assert (folder.parent, folder.name[:11], folder.stat().st_mode & 0o777) == (root, "shoal-demo-", 0o700)
    assert list(root.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one_but_no_other(root: Path) -> None:
    mine = root / "shoal-notes"
    mine.mkdir(mode=0o700)
    with (
        TemporaryFolder() as living,
        subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner,
    ):
        assert owner.stdout is not None
        killed = Path(owner.stdout.readline().decode().strip())
        with TemporaryFolder() as folder:
            assert set(root.iterdir()) == {mine, living, killed, folder}
        owner.kill()
        owner.wait(30)
        with TemporaryFolder() as folder:
            assert set(root.iterdir()) == {mine, living, folder}


def test_a_folder_that_others_may_write_to_is_left_alone(root: Path) -> None:
    theirs = root / "shoal-theirs"
    theirs.mkdir()
    (theirs / ".lock").touch()
    theirs.chmod(0o777)
    TemporaryFolder().remove()
    assert theirs.exists()
