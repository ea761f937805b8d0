"""Which jobs fit into their quotas."""

from shoal.queue.quotas import split_by_quota


def test_jobs_are_granted_in_their_order_until_a_key_is_full() -> None:
    split = split_by_quota("abc", {job: ["key"] for job in "abc"}, {"key": 2})
    assert split.seats == [("key", "a"), ("key", "b")]
    assert split.parked == {"c": "key"}


def test_a_job_needs_room_in_each_of_its_keys_and_takes_none_if_one_is_full() -> None:
    split = split_by_quota("abc", {"a": ["full", "free"], "b": ["free"], "c": ["free"]}, {"full": 0, "free": 1})
    assert split.seats == [("free", "b")]
    assert split.parked == {"a": "full", "c": "free"}


def test_keys_without_a_limit_count_nothing() -> None:
    split = split_by_quota("ab", {"a": ["free"]}, {"free": None})
    assert (split.seats, split.parked) == ([], {})


def test_a_key_over_its_limit_is_full() -> None:
    assert split_by_quota("a", {"a": ["key"]}, {"key": -3}).parked == {"a": "key"}
