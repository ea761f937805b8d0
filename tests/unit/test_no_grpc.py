"""Processes without a control plane do not import gRPC: it would cost them a fifth of a second and 20 MB."""

import subprocess
import sys

MODULES = (
    "shoal.process.controller, shoal.process.worker, shoal.process.child, shoal.app.fleet, shoal.app.rest_api,"
    " shoal.work.node_agent"
)


def test_commands_import_no_grpc_until_it_is_enabled() -> None:
    code = f"import sys, {MODULES}; print([name for name in ('grpc', 'google.protobuf') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
