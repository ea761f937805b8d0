"""Alert rules and dashboard: their metrics exist, and Prometheus accepts them."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from shoal.fleet.view import FleetSeen
from shoal.observe.metrics import Metrics
from tests.support.debian_packages import program_of

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "shoal.json"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def known_series() -> set[str]:
    return {table.name + suffix for table in Metrics().tables for suffix in SUFFIXES[table.kind]}


def expressions() -> list[str]:
    rules = re.findall(r"^ +expr: (.+)$", ALERTS.read_text(), re.MULTILINE)
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return rules + [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_an_expression_names_only_metrics_that_shoal_exports() -> None:
    known = known_series()
    for expression in expressions():
        named = set(re.findall(r"\bshoal_\w+", expression))
        assert named, expression
        assert named <= known, expression


def test_every_alert_says_what_happened_and_what_to_look_at() -> None:
    text = ALERTS.read_text()
    assert text.count("- alert:") == text.count("summary:") == text.count("description:") > 5


@pytest.mark.exhaustive
def test_prometheus_accepts_the_alert_rules() -> None:
    promtool = program_of("prometheus", "usr/bin/promtool")
    done = subprocess.run([promtool, "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_control_plane_there_is_no_number_of_nodes_to_alert_on() -> None:
    metrics = Metrics()
    assert b"\nshoal_grpc_connected_nodes " not in metrics.render()
    metrics.listen(FleetSeen(connected=0, nodes=[], pressure=[]))
    assert b"\nshoal_grpc_connected_nodes 0.0" in metrics.render()
