"""The fleet: nodes, their sessions with controllers, their health, commands, and the dispatch of jobs to private
lanes."""

import os

# Set this before gRPC is imported, because gRPC writes lines in a different format to stderr. The errors that both ends
# of a stream report contain the same information.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Workers fork only to start other programs. The fork handlers of gRPC would sometimes crash the child before that
# program starts.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
