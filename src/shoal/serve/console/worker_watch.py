"""Whether a worker is running, for pages that show waiting work, and the command that starts one."""

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
    """A chore of controllers. `is_missing` is false until it is known that no worker is running."""

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
    is_known = settings.grpc.enabled and listen.port  # port 0: any; a worker can do without the control plane
    control = f"GRPC_ANALYZER_ADDR={Address(listen.host or '127.0.0.1', listen.port)} " if is_known else ""
    return control + as_called(f"`shoal worker {where.lstrip()}`").strip("` ")
