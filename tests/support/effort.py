"""The number of cases that randomised tests try: the usual number times SHOAL_TEST_EFFORT."""

import os

EFFORT = "SHOAL_TEST_EFFORT"  # a factor for the usual number of cases


def times(usual: int) -> int:
    return max(1, round(usual * float(os.environ.get(EFFORT) or 1)))
