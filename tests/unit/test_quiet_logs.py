"""The logs of interactive commands: warnings only, and none that the command itself puts into words."""

import pytest

from shoal.base.settings_loader import load
from shoal.base.signals import Signal
from shoal.process.lifetime import quiet
from shoal.queue.moves import JobMoved
from shoal.queue.states import GrantEnd, JobState


def moved(kind: str, how: GrantEnd, to: JobState) -> Signal:
    return JobMoved(job_id="job_1", kind=kind, run_id="crl_1", to=to, how=how, reason=None, error="its process is gone")


def logged(signal: Signal, capsys: pytest.CaptureFixture[str]) -> str:
    quiet(load({}).settings).emit(signal)
    return capsys.readouterr().err


@pytest.mark.parametrize("how", [GrantEnd.CRASHED, GrantEnd.EXPIRED])
def test_a_command_that_takes_over_a_crawl_logs_no_lost_worker(
    how: GrantEnd, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logged(moved("crawl", how, JobState.PENDING), capsys) == ""


@pytest.mark.parametrize(
    ("kind", "how", "to"),
    [
        ("crawl", GrantEnd.CRASHED, JobState.FAILED),
        ("crawl", GrantEnd.RETRIED, JobState.PENDING),
        ("page", GrantEnd.EXPIRED, JobState.PENDING),
    ],
)
def test_other_troubles_of_jobs_are_logged(
    kind: str, how: GrantEnd, to: JobState, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "job_moved" in logged(moved(kind, how, to), capsys)
