"""A policy that audits: it is due, its crawl is analyzed and judged, and the commit shows the verdict."""

import sys
from pathlib import Path
from typing import Any

from tests.support.fleet import QUICK, Fleet, wait_for
from tests.support.forge_server import TOKEN, ForgeServer, forge_server
from tests.support.site import Site

SHA = "d" * 40
PUBLIC_URL = "https://shoal.example"
# Of the six pages of the site, none has a description and all have a title.
GATES = {
    "strict": {"rules": [{"metric": "description_missing", "op": "<=", "threshold": 0}]},
    "lenient": {"rules": [{"metric": "title_missing", "op": "<=", "threshold": 0}]},
    "whole": {"rules": [{"metric": "title_missing", "op": "<=", "threshold": 0}], "min_pages": 1_000},
}
# An analyzer that ends once its file exists: an analysis may be over before its first status was sent.
WAITING = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)\n"


def shown_by(forge: ForgeServer, context: str) -> list[str]:
    return forge.states("github", "acme/shop", SHA, context)


def test_a_due_policy_crawls_analyzes_judges_and_sets_the_status_of_the_commit(store_url: str, tmp_path: Path) -> None:
    program, released = tmp_path / "waiting.py", tmp_path / "released"
    program.write_text(WAITING)
    with Site(pages=6) as site, forge_server() as forge:
        env = {
            "SHOAL_ANALYZERS": f"waiting='{sys.executable}' {program} {released}",
            "SHOAL_GITHUB_API": forge.api("github"),
            "SHOAL_GITHUB_TOKEN": TOKEN,
            "SHOAL_PUBLIC_URL": PUBLIC_URL,
            "WORKER_CONCURRENCY": str(len(GATES)),
        }
        with Fleet(tmp_path, store_url, **QUICK, **env) as fleet:
            fleet.controller()
            for name, rules in GATES.items():
                fleet.post("/api/v1/gates", name=name, **rules)
            policies = [policy(fleet, site, name) for name in GATES]
            fleet.worker()
            wait_for_statuses(forge, 1)
            released.touch()
            wait_for_statuses(forge, 2)
            analyses = {one["gate"]: one for one in fleet.get("/api/v1/analyses")["items"]}
            crawls = {name: fleet.crawl(one["crawl_id"]) for name, one in analyses.items()}
            wait_for(
                lambda: all(fleet.get(f"/api/v1/policies/{one}")["last_success_at"] for one in policies),
                "the policies to record their runs",
            )
    verdicts = {"strict": "failed", "lenient": "passed", "whole": "inconclusive"}
    assert {name: one["verdict"]["outcome"] for name, one in analyses.items()} == verdicts
    assert {one["state"] for one in analyses.values()} == {"success"}, "a verdict is not a failure of the analysis"
    assert {name: one["labels"]["gate"] for name, one in crawls.items()} == {name: name for name in GATES}
    assert shown_by(forge, "strict") == ["pending", "failure"]
    assert shown_by(forge, "lenient") == ["pending", "success"]
    assert shown_by(forge, "whole") == ["pending", "error"]
    last = forge.statuses["github", "acme/shop", SHA, "strict"][-1]
    assert last["description"] == "Gate failed: description_missing is 6; the gate demands <= 0."
    assert last["target_url"] == f"{PUBLIC_URL}/api/v1/analyses/{analyses['strict']['id']}/report"


def wait_for_statuses(forge: ForgeServer, count: int) -> None:
    wait_for(
        lambda: all(len(shown_by(forge, name)) == count for name in GATES),
        f"{count} statuses for each policy",
        seen=lambda: str(forge.statuses),
    )


def policy(fleet: Fleet, site: Site, gate: str) -> str:
    """Create a policy that is due at once."""
    commit = {"forge": "github", "repo": "acme/shop", "sha": SHA, "context": gate}
    options: dict[str, Any] = {"analyze": True, "gate": gate, "commit": commit, "speed": "max"}
    form = {"seeds": [site.address], "frequency": "24h", "labels": {"gate": gate}, "crawl_config": options}
    return str(fleet.post("/api/v1/policies", **form)["id"])
