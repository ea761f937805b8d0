"""An analysis that runs in this process, after a local crawl."""

from contextlib import AsyncExitStack

from shoal.app import App
from shoal.audit.analyses import KIND
from shoal.audit.analysis import Analysis, AnalysisOptions
from shoal.base.ids import new_id
from shoal.queue.job import local_lane
from shoal.runners import analysis_runner
from shoal.work.lease_renewer import LeaseRenewer
from shoal.work.local_lease import holder_name


async def analyze_locally(app: App, crawl_id: str, options: AnalysisOptions, baseline: str | None = None) -> Analysis:
    """Analyze a crawl that has ended and return the analysis as it is stored. It is tried once; an error is raised
    after it was recorded."""
    lane = local_lane(new_id("anl"))  # not the crawl's: a process that died may have left a job there
    analysis = await app.audit.analyses.submit(crawl_id, options, baseline, lane=lane, attempts=1)
    [lease] = await app.queue.lease(holder_name(), [KIND], [lane], 1)
    async with AsyncExitStack() as stack:
        renewer = await stack.enter_async_context(LeaseRenewer(app.queue, lease, app.clock))
        run = await analysis_runner(app, lease, renewer.trusted)
        try:
            await run.run()
        except Exception as error:
            await app.queue.fail(lease, f"{type(error).__name__}: {error}")
            raise
    return await app.audit.analyses.get(analysis.id)
