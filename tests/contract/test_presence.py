"""Whether a worker is running, as the store knows it."""

from shoal.queue.presence import NOTE_COUNTS_FOR, NOTE_EVERY, WorkerPresence, is_worker_running
from tests.contract.conftest import Bench


async def test_a_worker_is_running_while_one_notes_that_it_leases(bench: Bench) -> None:
    leasing = [True, False]
    first, second = (WorkerPresence(bench.database, lambda place=place: leasing[place]) for place in (0, 1))
    assert not await is_worker_running(bench.database)
    await second.run_once()
    assert not await is_worker_running(bench.database)  # it is paused
    await first.run_once()
    assert await is_worker_running(bench.database)
    await bench.jump(NOTE_COUNTS_FOR.total_seconds() - 1)
    await first.run_once()
    await bench.jump(2)
    assert await is_worker_running(bench.database)
    await bench.jump(NOTE_COUNTS_FOR.total_seconds())
    assert not await is_worker_running(bench.database)


async def test_workers_leave_a_fresh_note_as_it_is(bench: Bench) -> None:
    presence = WorkerPresence(bench.database, lambda: True)
    await presence.run_once()
    noted = await bench.number("SELECT at FROM pulse WHERE name = 'worker'")
    await bench.jump(NOTE_EVERY.total_seconds() / 4)
    await presence.run_once()
    assert await bench.number("SELECT at FROM pulse WHERE name = 'worker'") == noted
