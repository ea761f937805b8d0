"""The exit code, or the error, for the end of a crawl."""

from shoal.base.errors import Interrupted, NothingCrawled
from shoal.crawl.lifecycle.crawl_status import NO_PAGE, CrawlStatus
from shoal.crawl.states import TERMINAL, CrawlState

FAILED = 1
LIMITS = {"max_bytes": 14, "max_seconds": 15}  # exit codes of a crawl that a limit completed


def exit_code_of(status: CrawlStatus, how_to_go_on: str) -> int:
    """Return the exit code, or raise the error that stands for it. `how_to_go_on`: the command that resumes a paused
    crawl."""
    state, reason = status.crawl.state, status.crawl.state_reason
    if status.failed_seeds or (state is CrawlState.FAILED and reason == NO_PAGE):
        raise NothingCrawled(status.crawl.id, status.why_no_seed or status.error_message)
    if state is CrawlState.COMPLETED:
        return LIMITS.get(reason or "", 0)
    if state in TERMINAL:
        return FAILED
    how = "is paused" if reason == "asked" else "was interrupted"
    raise Interrupted(f"crawl {status.crawl.id}", f"resume with `{how_to_go_on}`", how)
