"""A check whether a worker is running, for pages that show waiting work, and the command that starts a worker."""

import os
import shlex

from shoal.base.database import Database
from shoal.base.parsing import Address
from shoal.base.service import PassResult
from shoal.base.settings import Settings, data_dir, store_in
from shoal.base.text import redact_url
from shoal.observe.logs import as_called
from shoal.queue.presence import is_worker_running


class WorkerWatch:
    """A controller chore that looks for running workers. `is_missing` is true only after a check has found no running
    worker."""

    name = "worker watch"

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self.command = start_command(settings)
        self.is_missing = False

    async def run_once(self) -> PassResult:
        self.is_missing = not await is_worker_running(self._database)
        return PassResult()


def start_command(settings: Settings) -> str:
    """Return the command that starts a worker for this controller, without the password of its store."""
    store, listen = settings.database.url, settings.grpc.listen
    where = "" if store == store_in(data_dir(os.environ)) else f" --store {shlex.quote(redact_url(store))}"
    # port 0 means a free port, which is unknown here; a worker also runs without a control plane
    is_known = settings.grpc.enabled and listen.port
    control = f"GRPC_ANALYZER_ADDR={Address(listen.host or '127.0.0.1', listen.port)} " if is_known else ""
    return control + as_called(f"`shoal worker {where.lstrip()}`").strip("` ")
