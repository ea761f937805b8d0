"""The composition root: it builds the objects of a process, and is the only package that names drivers.

`App` holds them, `connect` opens the store, `drivers` and `stores` choose the drivers. Each other module builds the
objects of one package, or the chores, or the REST API. Job runners are built in `shoal.runners`.
"""

from shoal.app.app import App
from shoal.app.connect import attach, heartbeat_queue, opened
from shoal.app.drivers import database_of

__all__ = ["App", "attach", "database_of", "heartbeat_queue", "opened"]
