"""`shoal audit` as a CI job uses it: reports, the status of the commit, and what changed since the last time."""

from pathlib import Path

import msgspec
import orjson
import pyarrow.parquet as pq

from shoal.audit.reports.report import AuditReport
from tests.support.audit_reports import check_junit, check_sarif
from tests.support.fleet import clean_environment
from tests.support.forge_server import TOKEN, forge_server
from tests.support.processes import run_shoal
from tests.support.site import Site

SHA = "c" * 40


def test_an_audit_in_ci_writes_reports_sets_the_status_and_can_be_compared(tmp_path: Path) -> None:
    gate = tmp_path / "gate.toml"
    gate.write_text('fail = ["description_missing"]\n')
    files = {name: tmp_path / f"report.{name}" for name in ("html", "json-report", "junit", "sarif", "markdown")}
    flags = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    with Site(pages=6) as site, forge_server() as forge:
        env = clean_environment(tmp_path) | {"SHOAL_GITHUB_API": forge.api("github"), "SHOAL_GITHUB_TOKEN": TOKEN}
        words = ["audit", site.address, "--speed", "max"]
        first = run_shoal(*words, "--max-pages", "5", "--json", cwd=tmp_path, env=env, timeout=60)
        assert first.returncode == 0, first.stderr
        commit = ["--commit", f"github:acme/shop@{SHA}", "--commit-context", "site"]
        done = run_shoal(
            *words, "--gate", str(gate), *flags, *commit, "--annotations", cwd=tmp_path, env=env, timeout=60
        )
        assert forge.states("github", "acme/shop", SHA, "site") == ["pending", "failure"]
        last = forge.statuses["github", "acme/shop", SHA, "site"][-1]
        assert last["description"].startswith("Gate failed: description_missing is 6")
    assert done.returncode == 10, done.stderr
    assert "Gate: failed" in done.stderr
    assert "::error title=Audit::Gate failed: " in done.stdout
    check_junit(files["junit"].read_text())
    check_sarif(orjson.loads(files["sarif"].read_bytes()))
    report = msgspec.json.decode(files["json-report"].read_bytes(), type=AuditReport)
    assert report.verdict is not None
    assert report.metrics["pages"] == 6
    assert "Gate failed" in files["markdown"].read_text()
    assert f"<title>Audit of {site.address}" in files["html"].read_text()

    compared = run_shoal(
        *("crawls", "diff", orjson.loads(first.stdout)["crawl_id"], report.crawl_id, "--json"),
        *("--output", str(tmp_path / "diff.csv"), "--output", str(tmp_path / "diff.parquet")),
        cwd=tmp_path,
        env=env,
        timeout=60,
    )
    assert compared.returncode == 0, compared.stderr
    found = orjson.loads(compared.stdout)
    assert (found["pages"]["added"], found["pages"]["removed"], found["pages"]["unchanged"]) == (1, 0, 5)
    assert found["findings"]["new"] > 0
    rows = pq.read_table(tmp_path / "diff.parquet").to_pylist()
    assert [row["change"] for row in rows].count("added") == 1
    assert len((tmp_path / "diff.csv").read_text().splitlines()) == len(rows) + 1

    printed = run_shoal(
        "analyses", "report", report.analysis_id, "--print", "markdown", cwd=tmp_path, env=env, timeout=60
    )
    assert printed.stdout == files["markdown"].read_text()
