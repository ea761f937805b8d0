"""Quotas: which of the jobs that are about to be granted fit into the limits of their quota keys. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field


class QuotaSplit(Struct):
    """Jobs within and over their quotas."""

    seats: list[tuple[str, str]] = field(default_factory=list)  # quota key and job: what the granted ones count for
    parked: dict[str, str] = field(default_factory=dict)  # the others, each with its full quota key


def split_by_quota(
    jobs: Iterable[str], keys_of: Mapping[str, Sequence[str]], capacity: Mapping[str, int | None]
) -> QuotaSplit:
    """Grant jobs in their order as long as every quota key of theirs has room. `capacity`: how many more jobs a key may
    have; None if it has no limit."""
    left = {key: most for key, most in capacity.items() if most is not None}
    split = QuotaSplit()
    for job in jobs:
        limited = [key for key in keys_of.get(job, ()) if key in left]
        full = next((key for key in limited if left[key] <= 0), None)
        if full is not None:
            split.parked[job] = full
            continue
        for key in limited:
            split.seats.append((key, job))
            left[key] -= 1
    return split
