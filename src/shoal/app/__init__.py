"""The composition root: it builds the objects of a process, and is the only package that names drivers.

`App` holds those that are shared, each built at most once; most of the other modules build the objects behind the
attribute of `App` with their name. `connect` opens the store; `drivers` and `stores` choose the drivers.
Objects that serve one job or one command are built where it starts: in `shoal.process`, `shoal.compat` and
`shoal.cli`.
"""

from shoal.app.app import App
from shoal.app.connect import attach, heartbeat_queue, opened
from shoal.app.drivers import database_of, wanted_version

__all__ = ["App", "attach", "database_of", "heartbeat_queue", "opened", "wanted_version"]
