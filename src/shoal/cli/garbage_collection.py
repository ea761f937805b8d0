"""The garbage collector of a process that only crawls."""

import gc

YOUNG = 20_000  # objects; a commit's worth of pages is not searched four times before it is stored


def spare() -> None:
    """Leave alone what was imported, which stays for good, and look less often at what pages are made of: they have no
    cycles. Worth two to three percent of a crawl."""
    gc.freeze()
    gc.set_threshold(YOUNG)
