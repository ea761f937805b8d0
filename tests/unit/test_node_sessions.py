"""When a new session of a node displaces another process."""

from shoal.fleet.node import EarlierSession


def test_another_process_displaces_a_session_that_still_runs() -> None:
    running = EarlierSession("one", "controller")
    assert running.is_displaced_by("two")
    assert not running.is_displaced_by("one"), "a reconnect"
    assert running.is_displaced_by(""), "it cannot be told from another one"
    assert not EarlierSession("one", None).is_displaced_by("two"), "it was over"
