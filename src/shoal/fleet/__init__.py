"""The fleet: nodes and their sessions with controllers, health, dispatch to private lanes, commands."""

import os

# Before gRPC is imported: it writes lines of its own format to stderr. The same information is in the errors that both
# ends of a stream report.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Workers fork only to start other programs. The fork handlers of gRPC would sometimes crash the child before that
# program starts.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
