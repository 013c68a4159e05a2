"""Metrics: what dashboard, alerts and documents name exists, and no label can grow."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families

from harness_api.metrics import Metrics
from harness_worker.scheduler import metrics as of_scheduler
from harness_worker.telemetry import metrics as of_worker
from harness_worker.telemetry.multiprocess import FolderCollector

ROOT: Final = Path(__file__).parents[2]
ALERTS: Final = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD: Final = ROOT / "deploy" / "grafana" / "dashboards" / "harness.json"
SCALED: Final = ROOT / "deploy" / "k8s" / "components" / "keda" / "scaled-object.yaml"
BOUNDED: Final = {
    "action", "admitted", "code", "direction", "effect", "kind", "method", "of", "outcome",
    "provider", "reason", "route", "state", "status", "why",
}  # fmt: skip
"""Labels whose values come from code, or go through `Bounded`."""
OF_PROMETHEUS: Final = {"le", "job", "instance"}
NO_ROW: Final[dict[str, Any]] = {
    "runs": {}, "queued": {}, "breakers": None, "oldest_queued_s": None, "overdue_s": None,
    "approvals": 0, "oldest_approval_s": None, "unknown_effects": 0, "throttles": 0,
    "webhooks_disabled": 0, "deliveries_pending": 0, "workers": 0, "places": 0, "held": 0,
}  # fmt: skip


def families() -> Iterator[Metric]:
    for registry in (Metrics().registry, of_worker.REGISTRY, of_scheduler.REGISTRY):
        yield from registry.collect()
    yield from of_scheduler.families(NO_ROW)


def known() -> dict[str, set[str]]:
    """Return the names of samples with the labels that they may have."""
    out: dict[str, set[str]] = {"up": {"job", "instance"}}
    for registry in (Metrics().registry, of_worker.REGISTRY, of_scheduler.REGISTRY):
        for metric in list(registry._collector_to_names):
            names: Any = getattr(metric, "_labelnames", ())
            for name in registry._collector_to_names[metric]:
                out.setdefault(name, set()).update(names)
    for family in of_scheduler.families(NO_ROW):
        labels = {k for s in family.samples for k in s.labels}
        out.setdefault(family.name, set()).update(labels)
    return out


def expressions() -> list[tuple[str, str]]:
    found = []
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        found += [(rule["alert"], rule["expr"]) for rule in group["rules"]]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            found.append((panel["title"], target["expr"].replace("$__rate_interval", "5m")))
    for trigger in yaml.safe_load(SCALED.read_text())["spec"]["triggers"]:
        found.append((trigger["name"], trigger["metadata"]["query"]))
    return found


def test_every_expression_parses_and_names_what_there_is():
    exist = known()
    assert len(expressions()) > 80
    for title, text in expressions():
        promql_parser.parse(text)
        named = set(re.findall(r"\b(harness_\w+|up)\b(?!\")", text))
        assert named, title
        assert named <= exist.keys(), (title, named - exist.keys())
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", text))
        for group in re.findall(r"\bby \(([^)]*)\)", text):
            labels |= {label.strip() for label in group.split(",")}
        allowed = OF_PROMETHEUS.union(*(exist[name] for name in named))
        assert labels <= allowed, (title, labels - allowed)


def test_the_parser_refuses_what_is_no_expression():
    with pytest.raises(ValueError, match=r"."):
        promql_parser.parse("sum(rate(harness_steps_total[5m])")


def test_every_alert_has_its_section_in_the_runbook_and_no_section_is_left_over():
    alerts = [name for name, _ in expressions() if name.startswith("Harness")]
    runbook = (ROOT / "docs" / "runbook.md").read_text()
    sections = re.split(r"^## ", runbook, flags=re.MULTILINE)[1:]
    assert {s.split("\n", 1)[0] for s in sections} == set(alerts)
    for section in sections:
        for part in ("**Means.**", "**Look.**", "**Do.**"):
            assert part in section, section[:60]
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            anchor = f"docs/runbook.md#{rule['alert'].lower()}"
            assert rule["annotations"]["runbook"] == anchor
            assert rule["labels"]["severity"] in {"page", "warn", "info"}
            assert rule["for"]


def test_the_runbook_names_commands_that_there_are():
    """`harness …` in the runbook is a command of the command line."""
    from typer.main import get_command

    from harness_api.cli.main import app

    root: Any = get_command(app)
    for words in set(re.findall(r"`harness ([a-z -]+?)(?: [A-Z-].*?)?`", _text("runbook.md"))):
        at = root
        for word in words.split():
            assert word in getattr(at, "commands", {word: at}), words
            at = getattr(at, "commands", {word: at})[word]


def _text(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


def test_every_metric_stands_in_the_documents_and_nothing_else_does():
    told = set(re.findall(r"\bharness_(?!worker\b|api\b|common\b)[a-z_]+", _text("telemetry.md")))
    exist = {s for s in known() if s.startswith("harness_")}
    assert told <= exist, told - exist
    for family in families():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert name in told, name


def test_no_page_and_no_manifest_names_a_metric_that_there_is_not():
    """What is scaled, or looked for, by a name that nothing has stays as it is for ever."""
    exist = known()
    for path in [*ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.y*ml")]:
        named = set(re.findall(r"\bharness_\w+_(?:seconds|total|lost|bucket)\b", path.read_text()))
        assert named <= exist.keys(), (path.name, named - exist.keys())


def test_a_scheduler_that_postgres_does_not_answer_says_so():
    """It does not lead then, and an alert on what it no longer shows would never fire."""
    nothing: Any = None
    told = of_scheduler.PlatformMetrics(nothing, nothing, 15.0)
    told.lead(leads=False)
    assert list(told.collect()) == []
    told.lead(None)
    (family,) = told.collect()
    assert [(s.name, s.value) for s in family.samples] == [("harness_database_answers", 0.0)]


def test_what_alerts_count_is_there_before_it_happens():
    """Prometheus sees no increase in a series that begins with it: two hundred runs that lose their
    process at once, for the first time, would go unnoticed.
    """
    found: dict[str, set[str]] = {}
    for registry in (Metrics().registry, of_worker.REGISTRY, of_scheduler.REGISTRY):
        for family in registry.collect():
            for one in family.samples:
                found.setdefault(one.name, set()).update(one.labels.values())
    reasons = {reason for _, reason in of_scheduler._RECOVERIES}
    assert found["harness_recoveries_total"] >= reasons
    assert found["harness_spans_total"] == {"sent", "dropped", "refused"}


def test_labels_are_those_whose_values_are_bounded():
    for name, labels in known().items():
        assert labels <= BOUNDED | OF_PROMETHEUS, name


SAY_MUCH: Final = """
from harness_worker.scheduler import metrics as of_scheduler
from harness_worker.telemetry import metrics
for n in range(10_000):
    code, provider = metrics.codes(f"CODE_{n}"), metrics.providers(f"provider{n}")
    metrics.count(metrics.retries, code).inc()
    metrics.count(metrics.tool_errors, code).inc()
    metrics.count(metrics.model_calls, provider, code).inc()
    metrics.count(metrics.steps, metrics.kinds(f"kind{n}"), "done").inc()
    of_scheduler.actions_done.labels(of_scheduler.actions(f"action{n}")).inc()
print(sum(
    1 for registry in (metrics.REGISTRY, of_scheduler.REGISTRY)
    for f in registry.collect() for s in f.samples if s.name.endswith("_total")
))
"""


def test_whatever_a_tenant_says_the_series_of_a_process_are_few():
    """Ten thousand different names, codes and kinds make no more series than the bounds allow."""
    done = subprocess.run(
        [sys.executable, "-c", SAY_MUCH], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert 200 < int(done.stdout) < 500


COUNT: Final = """
import os, sys
from harness_worker.telemetry import metrics
metrics.steps.labels("model", "done").inc(3)
metrics.step_seconds.labels("model").observe(0.2)
metrics.places.set(100)
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.read()
"""


def test_what_a_killed_process_counted_stays_and_what_it_held_goes(tmp_path):
    """Two processes count; one is killed: its counters stay, its gauge does not."""
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    two = [
        subprocess.Popen(
            [sys.executable, "-c", COUNT],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
        )
        for _ in range(2)
    ]  # fmt: skip
    registry = CollectorRegistry()
    registry.register(FolderCollector(tmp_path))
    try:
        for process in two:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        assert sample(registry, "harness_steps_total", kind="model", outcome="done") == 6
        assert sample(registry, "harness_places") == 200
        two[0].kill()
        two[0].wait()
        assert sample(registry, "harness_steps_total", kind="model", outcome="done") == 6
        assert sample(registry, "harness_step_seconds_count", kind="model") == 2
        assert sample(registry, "harness_places") == 100
    finally:
        for process in two:
            process.kill()
            process.communicate()


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    from prometheus_client import generate_latest

    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for one in family.samples:
            if one.name == name and one.labels == labels:
                return one.value
    return None


def test_files_of_many_dead_processes_are_forgotten(tmp_path):
    """A process that dies at its start again and again must not fill the folder, nor spoil it by
    the empty file that it may leave.
    """
    never = 5_000_000  # more than Linux gives out
    for pid in [*range(never, never + 150), os.getpid()]:
        (tmp_path / f"counter_{pid}.db").write_bytes(b"")
        os.utime(tmp_path / f"counter_{pid}.db", (pid, pid))
    list(FolderCollector(tmp_path).collect())
    left = {int(f.stem.rpartition("_")[2]) for f in tmp_path.iterdir()}
    assert left == {*range(never + 50, never + 150), os.getpid()}


def test_no_name_or_id_is_given_to_a_label():
    """Look at the calls themselves: no label is given a tenant, run, session, tool or model."""
    bad = re.compile(r"tenant|run_id|session|tool\.spec\.name|\.model\b|agent")
    for path in [*ROOT.glob("harness_worker/**/*.py"), *ROOT.glob("harness_api/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in {"labels", "count", "timed"}
            ):
                given = " ".join(ast.unparse(a) for a in node.args)
                assert not bad.search(given), f"{path.name}: {given}"
