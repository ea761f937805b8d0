"""How hard tests that try many cases try: as hard as a run of everything can afford, or as hard as somebody asks."""

import os

EFFORT = "SHOAL_TEST_EFFORT"  # so many times the usual number of cases


def times(usual: int) -> int:
    return max(1, round(usual * float(os.environ.get(EFFORT) or 1)))
