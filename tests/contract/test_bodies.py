"""Contract of the body stores: a folder and an object store."""

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.base.clock import Clock, SystemClock
from shoal.base.errors import BadConfig, BodiesUnavailable, NotFound, StorageFull
from shoal.base.settings import BodySettings
from shoal.base.signals import Signal, Signals
from shoal.drivers.folder_bodies import FolderBodies
from shoal.drivers.s3_bodies import TRIES, S3Bodies
from shoal.pages.bodies import BodyLocation, BodyStore, BodyStoreFailed
from shoal.pages.warc import read_first
from tests.support.s3_server import ACCESS_KEY, REGION, SECRET_KEY, ObjectStore, object_store, signature


@pytest.fixture
def objects() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


def s3(
    objects: ObjectStore,
    place: str = "s3://pages/some/prefix",
    secret: str = SECRET_KEY,
    clock: Clock = SystemClock(),  # noqa: B008 - it has no state
    signals: Signals | None = None,
) -> S3Bodies:
    settings = BodySettings(place=place, endpoint=objects.url, region=REGION, access_key=ACCESS_KEY, secret_key=secret)
    return S3Bodies(settings, clock, signals or Signals())


@pytest.fixture(params=["folder", "s3"])
def bodies(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BodyStore]:
    store: BodyStore
    if request.param == "folder":
        store = FolderBodies(tmp_path / "bodies", SystemClock())
    else:
        store = s3(request.getfixturevalue("objects"))
    yield store
    store.close()


async def keep(bodies: BodyStore, crawl_id: str, data: bytes) -> BodyLocation:
    """Store a body with a separate writer."""
    writer = bodies.writer(crawl_id)
    try:
        return await writer.append(data)
    finally:
        await writer.close()


async def test_an_appended_body_is_read_back_from_its_location(bodies: BodyStore) -> None:
    writer = bodies.writer("crl_1")
    places = [await writer.append(data) for data in (b"first", b"\x00second\xff", b"third" * 1000)]
    assert [await bodies.read(place) for place in reversed(places)] == [b"third" * 1000, b"\x00second\xff", b"first"]
    await writer.close()
    assert await bodies.read(places[0]) == b"first"


async def test_a_piece_in_the_middle_of_a_batch_is_read_alone(bodies: BodyStore) -> None:
    place = await keep(bodies, "crl_1", b"one two three")
    assert await bodies.read(BodyLocation(place.file, place.offset + 4, 3)) == b"two"


async def test_each_file_begins_with_a_record_that_says_what_it_is(bodies: BodyStore) -> None:
    place = await keep(bodies, "crl_1", b"x")
    record = read_first(await bodies.read(BodyLocation(place.file, 0, place.offset)))
    assert record.fields["warc-type"] == "warcinfo"
    assert b"isPartOf: crl_1\r\n" in record.block


async def test_two_writers_of_a_crawl_never_share_a_file(bodies: BodyStore) -> None:
    one, two = [await keep(bodies, "crl_1", b"same") for _ in range(2)]
    assert one.file != two.file


async def test_forgetting_a_crawl_removes_its_bodies_and_no_others(bodies: BodyStore) -> None:
    gone = [await keep(bodies, "crl_1", b"gone") for _ in range(5)]
    stays = await keep(bodies, "crl_10", b"stays")
    await bodies.forget("crl_1")
    await bodies.forget("crl_1")  # again: it is empty
    for place in gone:
        with pytest.raises(NotFound):
            await bodies.read(place)
    assert await bodies.read(stays) == b"stays"


@pytest.mark.parametrize("crawl_id", ["..", ".", "-", "a.b_c-d", "x" * 64])
async def test_any_id_that_a_crawl_may_have_is_a_name_that_a_store_can_take(bodies: BodyStore, crawl_id: str) -> None:
    place = await keep(bodies, crawl_id, b"kept")
    assert await bodies.read(place) == b"kept"
    await bodies.forget(crawl_id)
    with pytest.raises(NotFound):
        await bodies.read(place)


@pytest.mark.parametrize("file", ["/etc/passwd", "../shoal.db", "crawl-a/../../x.warc.gz", "crawl-a/.warc.gz", ""])
async def test_a_place_that_no_writer_gave_out_is_not_read(bodies: BodyStore, file: str) -> None:
    with pytest.raises(NotFound):
        await bodies.read(BodyLocation(file, 0, 1))


async def test_a_range_past_the_end_is_not_found(bodies: BodyStore) -> None:
    place = await keep(bodies, "crl_1", b"short")
    with pytest.raises(NotFound, match="SHOAL_BODIES"):
        await bodies.read(BodyLocation(place.file, place.offset, 6))


async def test_a_folder_begins_another_segment_when_one_is_large(tmp_path: Path) -> None:
    bodies = FolderBodies(tmp_path, SystemClock(), segment_bytes=500)
    writer = bodies.writer("crl_1")
    places = [await writer.append(bytes([number]) * 600) for number in range(4)]
    await writer.close()
    assert len({place.file for place in places}) == 4
    assert [await bodies.read(place) for place in places] == [bytes([number]) * 600 for number in range(4)]
    assert [place.offset + place.length < 1500 for place in places] == [True] * 4


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_folder_without_space_says_so_and_goes_on_in_another_segment(tmp_path: Path) -> None:
    bodies = FolderBodies(tmp_path, SystemClock())
    writer = bodies.writer("crl_1")
    before = await writer.append(b"before")
    with files_at_most(5000), pytest.raises(StorageFull) as told:
        await writer.append(b"x" * 10_000)
    assert getattr(told.value.__cause__, "errno", None) == errno.EFBIG
    after = await writer.append(b"after")
    await writer.close()
    assert after.file != before.file
    assert (await bodies.read(before), await bodies.read(after)) == (b"before", b"after")


async def test_a_folder_that_cannot_be_made_is_the_operators_business(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(BadConfig, match="SHOAL_BODIES"):
        await FolderBodies(tmp_path / "file", SystemClock()).writer("crl_1").append(b"x")


class Hurried(SystemClock):
    """Records the requested sleep times without sleeping."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def test_an_object_store_that_stumbles_is_asked_again_and_not_without_end(objects: ObjectStore) -> None:
    clock = Hurried()
    told: list[Signal] = []
    signals = Signals()
    signals.subscribe(told.append)
    bodies = s3(objects, clock=clock, signals=signals)
    objects.failing = 2
    place = await keep(bodies, "crl_1", b"kept")
    assert clock.slept == [0.5, 1.0]
    assert told == [
        BodyStoreFailed(store=objects.url, error="it returned 503", retry_in_seconds=pause) for pause in (0.5, 1.0)
    ]
    assert list(objects.objects) == [f"some/prefix/{place.file}"]
    objects.failing = TRIES
    with pytest.raises(BodiesUnavailable, match="it returned 503"):
        await keep(bodies, "crl_1", b"not kept")
    bodies.close()


async def test_an_object_store_without_space_says_so_at_once(objects: ObjectStore) -> None:
    bodies = s3(objects, clock=Hurried())
    await bodies.check_space()
    assert objects.objects == {}
    objects.refusing["PUT"] = 507
    for write in (keep(bodies, "crl_1", b"not kept"), bodies.check_space()):
        with pytest.raises(StorageFull) as told:
            await write
        assert told.value.storage == "bodies"
    assert objects.requests == 4
    bodies.close()


async def test_a_key_that_is_refused_and_a_bucket_that_is_missing_are_the_operators_business(
    objects: ObjectStore,
) -> None:
    for store in (s3(objects, secret="wrong"), s3(objects, place="s3://elsewhere")):
        with pytest.raises(BadConfig, match="SHOAL_BODIES"):
            await store.writer("crl_1").append(b"x")
        store.close()
    assert objects.objects == {}


def test_the_check_of_signatures_agrees_with_a_published_example() -> None:
    """GET Object of "Authenticating Requests: Using the Authorization Header", Amazon S3's API reference."""
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    fields = {
        "host": "examplebucket.s3.amazonaws.com",
        "range": "bytes=0-9",
        "x-amz-content-sha256": empty,
        "x-amz-date": "20130524T000000Z",
    }
    names = "host;range;x-amz-content-sha256;x-amz-date"
    scope = "20130524/us-east-1/s3/aws4_request"
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    made = signature(secret, "GET", "/test.txt", "", fields, names, scope)
    assert made == "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"


@pytest.mark.parametrize(("method", "status"), [("DELETE", 405), ("DELETE", 409), ("GET", 400)])
async def test_a_crawl_whose_bodies_the_object_store_does_not_remove_is_not_taken_for_removed(
    objects: ObjectStore, method: str, status: int
) -> None:
    bodies = s3(objects)
    await keep(bodies, "crl_1", b"kept")
    objects.refusing = {method: status}
    with pytest.raises(BodiesUnavailable, match=f"it returned {status}"):
        await bodies.forget("crl_1")
    bodies.close()


async def test_an_answer_that_does_not_say_that_a_body_is_missing_is_not_taken_for_that(objects: ObjectStore) -> None:
    bodies = s3(objects)
    place = await keep(bodies, "crl_1", b"kept")
    objects.refusing = {"GET": 409}
    with pytest.raises(BodiesUnavailable, match="it returned 409"):
        await bodies.read(place)
    bodies.close()


async def test_headers_that_a_proxy_may_change_are_not_signed(objects: ObjectStore) -> None:
    bodies = s3(objects)
    await bodies.read(await keep(bodies, "crl_1", b"kept"))
    bodies.close()
    assert [fields.get("accept-encoding") for fields in objects.heard] == [None, None]
