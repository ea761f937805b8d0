"""Record on policies how their runs ended, in the commit that ends them."""

from collections.abc import Sequence

from shoal.base.database import Tx
from shoal.queue.job import EndedRun


class PolicyRuns:
    """Implements `queue.job.RunEndHook`."""

    async def ended(self, tx: Tx, runs: Sequence[EndedRun]) -> None:
        if any(run.policy_id is not None for run in runs):
            from shoal.plan.run_recorder import record_ends  # most processes never see a policy run

            await record_ends(tx, runs)
