"""The fleet: nodes and their sessions with controllers, health, dispatch to private lanes, commands."""

import os

# Before gRPC is imported: it writes lines of its own format to stderr. What it says there is also in the errors that
# both ends of a stream report.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Workers fork only to start other programs. What gRPC does in a fork to use it there would sometimes crash it before
# that program begins.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
