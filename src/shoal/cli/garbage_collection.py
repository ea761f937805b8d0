"""Garbage collector settings for a process that only crawls."""

import gc

GENERATION_0 = 20_000  # objects; a lower number would scan the pages of a commit several times before they are stored


def reduce_collections() -> None:
    """Exclude imported modules from collection, and collect less often: page objects have no cycles. Saves two to three
    percent of a crawl's time."""
    gc.freeze()
    gc.set_threshold(GENERATION_0)
