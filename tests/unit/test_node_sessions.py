"""When a new session of a node displaces another process."""

from shoal.fleet.node import is_same_process


def test_a_process_is_known_by_its_instance() -> None:
    assert is_same_process("one", "one"), "a reconnect"
    assert not is_same_process("two", "one")
    assert not is_same_process("", ""), "it cannot be told from another one"
