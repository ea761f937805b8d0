"""An analysis that runs in this process, after a local crawl."""

from typing import Final

from shoal.app import App
from shoal.audit.analyses import KIND
from shoal.audit.analysis import Analysis, AnalysisOptions
from shoal.audit.states import TERMINAL
from shoal.base.ids import new_id
from shoal.process.runners import analysis_runner
from shoal.queue.job import Lease, local_lane
from shoal.work.leases import LeaseRenewer, holder_name

RETRY_POLL_SECONDS: Final = 0.1


async def analyze_locally(app: App, crawl_id: str, options: AnalysisOptions, baseline: str | None = None) -> Analysis:
    """Analyze a crawl that has ended and return the analysis as it is stored. If analyzers fail, they are tried again,
    as on a worker; any other error is raised after it was recorded."""
    lane = local_lane(new_id("anl"))  # not the crawl's: a process that died may have left a job there
    analysis = await app.audit.analyses.submit(crawl_id, options, baseline, lane=lane)
    while analysis.state not in TERMINAL:
        if leases := await app.queue.lease(holder_name(), [KIND], [lane], 1):
            await _attempt(app, leases[0])
        else:
            await app.clock.sleep(RETRY_POLL_SECONDS)  # until its back-off is over
        analysis = await app.audit.analyses.get(analysis.id)
    return analysis


async def _attempt(app: App, lease: Lease) -> None:
    async with LeaseRenewer(app.queue, lease, app.clock) as renewer:
        run = await analysis_runner(app, lease, renewer.trusted)
        try:
            await run.run()
        except Exception as error:
            lease.max_attempts = lease.attempts + 1  # nobody would try it again
            await app.queue.fail(lease, f"{type(error).__name__}: {error}")
            raise
