"""The composition root: it builds the objects of a process, and is the only package that names drivers.

`App` holds the shared objects and builds each at most once. Most other modules of this package are named after an
attribute of `App`, and build the objects behind it. `connect` opens the store; `drivers` and `stores` choose the
drivers. Objects that serve only one job or command are built where the job or command starts: in `shoal.process`,
`shoal.compat` and `shoal.cli`.
"""

from shoal.app.app import App
from shoal.app.connect import attach, heartbeat_queue, opened
from shoal.app.drivers import database_of, wanted_version

__all__ = ["App", "attach", "database_of", "heartbeat_queue", "opened", "wanted_version"]
