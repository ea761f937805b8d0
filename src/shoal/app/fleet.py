"""The objects of `shoal.fleet` in a controller."""

from functools import cached_property
from typing import TYPE_CHECKING

from shoal.base.service import Chore
from shoal.fleet.dispatcher import DispatchCounter, Dispatcher
from shoal.fleet.explain import NodeExplainer
from shoal.fleet.janitor import CommandSender, FleetJanitor
from shoal.fleet.nodes import Nodes
from shoal.fleet.sessions import Sessions, SessionSaver, stored_interval
from shoal.fleet.view import CLASSES, FleetPressure, FleetRefresh, FleetView, PressureStatus

if TYPE_CHECKING:
    from shoal.app.app import App
    from shoal.fleet.channel import KeepAlive
    from shoal.fleet.control_server import ControlServer


# Share of SHOAL_MAX_CONNECTIONS. Each of these connections may need three file descriptors, in addition to the file
# descriptors of the HTTP port.
UNPROVEN_NODES = 1 / 8


class Fleet:
    """The node registry, the dispatcher and back-pressure. The dispatcher and back-pressure take effect only in
    controllers that run the control plane. Other processes can still read the registry and send commands."""

    def __init__(self, app: "App") -> None:
        self._app = app

    def start(self) -> list[Chore]:
        """Subscribe to changes of jobs from now on. Return the chores, each to be run every second."""
        app = self._app
        app.signals.subscribe(self.view.listen)
        chores: list[Chore] = [self.session_saver, self.refresh, self.janitor, CommandSender(self.nodes)]
        if self.dispatches:
            chores.append(DispatchCounter(self.dispatcher, app.signals))
        return chores

    @property
    def dispatches(self) -> bool:
        """Return whether jobs are dispatched to private lanes."""
        return self._app.settings.fleet.dispatch == "private"

    @cached_property
    def sessions(self) -> Sessions:
        """The sessions of nodes that are connected to this process."""
        return Sessions(self._app.clock, self._app.signals)

    @cached_property
    def session_saver(self) -> SessionSaver:
        """The chore that stores the reports of nodes that are connected to this process."""
        return SessionSaver(self.sessions, self.nodes, self._app.access.tokens)

    def control_server(self, keepalive: "KeepAlive | None" = None) -> "ControlServer":
        """Build the gRPC server of the control plane."""
        from shoal.access.limits import AuthThrottle, ConnectionLimits
        from shoal.fleet.channel import NodeAuthenticator
        from shoal.fleet.control_port import ControlPort
        from shoal.fleet.control_server import ControlServer, ControlService

        app, serve = self._app, self._app.settings.serve
        authenticator = NodeAuthenticator(app.access.tokens, AuthThrottle(app.clock))
        port = ControlPort(ConnectionLimits(serve, app.clock, app.signals, UNPROVEN_NODES), app.signals)
        service = ControlService(self.nodes, self.sessions, authenticator, port=port, settings=app.settings.grpc)
        certificate = None if serve.tls_cert is None or serve.tls_key is None else (serve.tls_cert, serve.tls_key)
        return ControlServer(service, port, app.settings.grpc, certificate, keepalive)

    @cached_property
    def nodes(self) -> Nodes:
        app = self._app
        return Nodes(app.database, app.queue, app.signals, self.sessions, controller=app.process_name)

    @cached_property
    def view(self) -> FleetView:
        return FleetView()

    @property
    def explainer(self) -> NodeExplainer:
        return NodeExplainer(self.nodes, self.view, private=self.dispatches)

    @cached_property
    def refresh(self) -> FleetRefresh:
        """The chore that keeps the view up to date."""
        app = self._app
        most = app.settings.fleet.shared_depth_max
        return FleetRefresh(self.view, self.nodes, app.queue, self.pressure, app.signals, shared_most=most)

    @cached_property
    def dispatcher(self) -> Dispatcher:
        return Dispatcher(self.view, self._app.settings.fleet.offer_ttl)

    @cached_property
    def pressure(self) -> FleetPressure:
        app = self._app
        return FleetPressure(self.view, app.signals, app.settings.fleet.shared_depth_max, dispatches=self.dispatches)

    def pressures(self) -> list[PressureStatus]:
        """Return the back-pressure on each class of jobs; an empty list if this process runs no control plane."""
        return [self.pressure.status(one) for one in CLASSES] if self._app.controls else []

    @cached_property
    def janitor(self) -> FleetJanitor:
        app = self._app
        return FleetJanitor(
            self.nodes,
            app.queue.recovery.clock_watch(app.clock),
            app.clock,
            heartbeat_every=stored_interval(app.settings.grpc.heartbeat_interval),
            keep_lost=app.settings.fleet.keep_lost,
        )
