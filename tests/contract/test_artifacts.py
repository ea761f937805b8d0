"""Contract of the artifact stores: a folder and an object store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.audit.artifacts import ArtifactStore
from shoal.base.clock import SystemClock
from shoal.base.errors import BadConfig, NotFound
from shoal.base.settings import BodySettings
from shoal.base.signals import Signals
from shoal.drivers.artifacts import FolderArtifacts, S3Artifacts
from shoal.drivers.s3_bodies import S3Bodies
from tests.support.s3_server import ACCESS_KEY, REGION, SECRET_KEY, ObjectStore, object_store


@pytest.fixture
def objects() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


def s3(objects: ObjectStore) -> S3Artifacts:
    settings = BodySettings(
        place="s3://pages/audit", endpoint=objects.url, region=REGION, access_key=ACCESS_KEY, secret_key=SECRET_KEY
    )
    return S3Artifacts(S3Bodies(settings, SystemClock(), Signals(), "SHOAL_ARTIFACTS"))


@pytest.fixture(params=["folder", "s3"])
def artifacts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ArtifactStore]:
    store: ArtifactStore
    if request.param == "folder":
        store = FolderArtifacts(tmp_path / "artifacts")
    else:
        store = s3(request.getfixturevalue("objects"))
    yield store
    store.close()


async def test_a_file_is_read_back_as_it_was_stored(artifacts: ArtifactStore) -> None:
    await artifacts.put("anl_1", "report.html", b"<p>\x00\xff</p>")
    assert await artifacts.read("anl_1", "report.html") == b"<p>\x00\xff</p>"


async def test_a_file_of_the_same_name_takes_the_place_of_the_earlier_one(artifacts: ArtifactStore) -> None:
    for data in (b"first, and longer", b"second"):
        await artifacts.put("anl_1", "raw.json", data)
    assert await artifacts.read("anl_1", "raw.json") == b"second"


async def test_analyses_do_not_share_files(artifacts: ArtifactStore) -> None:
    await artifacts.put("anl_1", "raw.json", b"one")
    await artifacts.put("anl_2", "raw.json", b"two")
    assert await artifacts.read("anl_1", "raw.json") == b"one"


async def test_a_file_that_is_not_there_is_named(artifacts: ArtifactStore) -> None:
    with pytest.raises(NotFound, match=r"raw\.json"):
        await artifacts.read("anl_1", "raw.json")


async def test_the_files_of_an_analysis_are_removed_together(artifacts: ArtifactStore) -> None:
    for name in ("a.json", "b.json", "c.json"):
        await artifacts.put("anl_1", name, b"one")
    await artifacts.put("anl_12", "a.json", b"another analysis")
    await artifacts.forget("anl_1")
    await artifacts.forget("anl_1")
    for name in ("a.json", "b.json", "c.json"):
        with pytest.raises(NotFound):
            await artifacts.read("anl_1", name)
    assert await artifacts.read("anl_12", "a.json") == b"another analysis"


async def test_an_object_store_that_rejects_the_key_says_what_to_check(objects: ObjectStore) -> None:
    store = s3(objects)
    objects.refusing["PUT"] = 403
    with pytest.raises(BadConfig, match=r"SHOAL_ARTIFACTS names the bucket pages, which rejects the access key"):
        await store.put("anl_1", "raw.json", b"data")
    store.close()
