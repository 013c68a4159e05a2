"""The manifests are what Kubernetes takes, refuse what they should, and stop nobody too early."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness_worker.worker_process import KILL_AFTER_S
from tests.deploy.kustomize import build
from tests.deploy.schemas import manifest_faults
from tests.deploy.variables import unknown_variables

K8S = Path(__file__).parents[2] / "deploy" / "k8s"
EXAMPLE = K8S / "overlays" / "example"
BUILDS = [K8S / "base", EXAMPLE, EXAMPLE / "migrate-pre", EXAMPLE / "migrate-post"]
OF_OTHERS = {"ScaledObject"}
"""Kinds of KEDA, whose schema no package has: looked at below."""


def docs_of(folder: Path, kind: str = "") -> list[dict[str, Any]]:
    return [doc for doc in build(folder) if not kind or doc["kind"] == kind]


def named(name: str, kind: str = "Deployment", folder: Path = EXAMPLE) -> dict[str, Any]:
    (found,) = [doc for doc in docs_of(folder, kind) if doc["metadata"]["name"] == name]
    return found


def pods(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for doc in docs_of(folder):
        if "template" in doc.get("spec", {}):
            yield doc["metadata"]["name"], doc["spec"]["template"]["spec"]


@pytest.mark.parametrize("folder", BUILDS, ids=lambda f: f.name)
def test_kubernetes_would_take_them(folder):
    faults = {
        f"{doc['kind']} {doc['metadata']['name']}": found
        for doc in docs_of(folder)
        if doc["kind"] not in OF_OTHERS and (found := manifest_faults(doc))
    }
    assert faults == {}


def test_a_wrong_manifest_is_found():
    wrong = named("harness-api")
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    assert any("readinesProbe" in fault for fault in manifest_faults(wrong))
    wrong = named("harness-api", "Service")
    wrong["spec"]["ports"][0]["port"] = "eighty"
    assert manifest_faults(wrong)


@pytest.mark.parametrize("folder", BUILDS, ids=lambda f: f.name)
def test_every_pod_is_restricted(folder):
    """As the Pod Security level "restricted" asks, and with a root file system for reading."""
    for name, pod in pods(folder):
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["runAsUser"] > 10_000, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True, name
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert "memory" in container["resources"]["limits"], name
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}, name


@pytest.mark.parametrize("folder", BUILDS, ids=lambda f: f.name)
def test_nothing_refers_to_what_is_not_there(folder):
    docs = docs_of(folder)
    have = {(doc["kind"], doc["metadata"]["name"]) for doc in docs}
    for name, pod in pods(folder):
        if "serviceAccountName" in pod:
            assert ("ServiceAccount", pod["serviceAccountName"]) in have, name
        mounts = {m["name"] for c in pod["containers"] for m in c["volumeMounts"]}
        assert mounts == {v["name"] for v in pod["volumes"]}, name
    labels = [doc["spec"]["template"]["metadata"]["labels"] for doc in docs if _has_pods(doc)]
    for doc in docs:
        for selector in _selectors(doc):
            assert any(selector.items() <= found.items() for found in labels), doc["metadata"]


def _has_pods(doc: dict[str, Any]) -> bool:
    return "template" in doc.get("spec", {})


def _selectors(doc: dict[str, Any]) -> Iterator[dict[str, str]]:
    spec = doc.get("spec", {})
    if doc["kind"] == "Service":
        yield spec["selector"]
    elif doc["kind"] in {"Deployment", "PodDisruptionBudget"}:
        yield spec["selector"]["matchLabels"]
    elif doc["kind"] == "NetworkPolicy":
        yield spec["podSelector"].get("matchLabels", {})


def test_each_process_gets_only_its_own_secrets():
    secrets = {
        name: {
            ref["secretRef"]["name"]
            for container in pod["containers"]
            for ref in container.get("envFrom", ())
            if "secretRef" in ref
        }
        for folder in BUILDS
        for name, pod in pods(folder)
    }
    assert secrets == {
        "harness-api": {"harness-api"},
        "harness-worker": {"harness-system", "harness-models"},
        "harness-scheduler": {"harness-system"},
        "harness-flower": {"harness-flower"},
        "harness-migrate-pre": {"harness-owner", "harness-system", "harness-api"},
        "harness-migrate-post": {"harness-owner", "harness-system", "harness-api"},
    }


def test_the_scheduler_signs_webhooks_with_what_the_api_told():
    (container,) = named("harness-scheduler")["spec"]["template"]["spec"]["containers"]
    (pepper,) = [e for e in container["env"] if e["name"] == "HARNESS_API__KEY_PEPPER"]
    assert pepper["valueFrom"] == {
        "secretKeyRef": {"name": "harness-api", "key": "HARNESS_API__KEY_PEPPER"}
    }


def test_a_worker_may_drain_for_longer_than_its_grace():
    """Killed sooner, it would lose the steps under way at every roll-out."""
    settings = named("harness-settings", "ConfigMap")["data"]
    pod = named("harness-worker")["spec"]["template"]["spec"]
    drain_s = float(settings["HARNESS_WORKER__GRACE_S"]) + KILL_AFTER_S
    assert pod["terminationGracePeriodSeconds"] > drain_s


def test_an_api_leaves_the_balancers_before_it_stops_listening():
    pod = named("harness-api")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    sleep = container["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == ["sleep", "10"]
    assert pod["terminationGracePeriodSeconds"] >= 10 + 10 + 5
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"


@pytest.mark.parametrize("name", ["harness-api", "harness-worker", "harness-scheduler"])
def test_a_roll_out_never_has_fewer_than_before(name):
    rolling = named(name)["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 1, "maxUnavailable": 0}
    assert named(name, "PodDisruptionBudget")["spec"]["minAvailable"] == 1


def test_workers_are_scaled_by_how_long_runs_wait():
    scaled = named("harness-worker", "ScaledObject")["spec"]
    assert scaled["scaleTargetRef"]["name"] == "harness-worker"
    assert "replicas" not in named("harness-worker")["spec"]
    assert 1 < scaled["minReplicaCount"] < scaled["maxReplicaCount"]
    queries = [trigger["metadata"]["query"] for trigger in scaled["triggers"]]
    assert any("harness_queue_wait_seconds" in query for query in queries)
    assert named("harness-api", "HorizontalPodAutoscaler")["spec"]["minReplicas"] == 2


def test_tools_run_in_gvisor_in_the_example():
    pod = named("harness-worker")["spec"]["template"]["spec"]
    assert pod["runtimeClassName"] == named("gvisor", "RuntimeClass")["metadata"]["name"]
    assert named("gvisor", "RuntimeClass")["handler"] == "runsc"


def test_only_the_api_reaches_flower_and_private_networks_are_closed():
    flower = named("harness-flower", "NetworkPolicy")["spec"]
    ((source,),) = [rule["from"] for rule in flower["ingress"]]
    assert source == {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "harness-api"}}}
    ((block,),) = [r["to"] for r in named("harness-internet", "NetworkPolicy")["spec"]["egress"]]
    assert {"10.0.0.0/8", "169.254.0.0/16"} <= set(block["ipBlock"]["except"])
    nothing = named("harness-nothing", "NetworkPolicy")["spec"]
    assert "ingress" not in nothing
    assert "egress" not in nothing
    for doc in docs_of(EXAMPLE, "Deployment"):
        labels = doc["spec"]["template"]["metadata"]["labels"]
        assert nothing["podSelector"]["matchLabels"].items() <= labels.items()


def test_every_setting_exists():
    names = set(named("harness-settings", "ConfigMap")["data"])
    for folder in BUILDS:
        for _, pod in pods(folder):
            names |= {e["name"] for c in pod["containers"] for e in c.get("env", ())}
    script = (EXAMPLE / "secrets.example.sh").read_text()
    names |= {w.partition("=")[0] for w in script.replace("--from-literal=", " ").split()}
    assert unknown_variables(names) == []


def test_the_api_believes_the_ingress_controller():
    """Else cookies are not marked Secure, and one person's failed logins make everybody wait."""
    found = {
        entry["value"]
        for name, pod in pods(EXAMPLE)
        if name == "harness-api"
        for container in pod["containers"]
        for entry in container.get("env", ())
        if entry["name"] == "FORWARDED_ALLOW_IPS"
    }
    assert found == {"*"}


def test_every_file_is_used():
    """A manifest that no kustomization names would be forgotten."""
    named_files: set[Path] = set()
    for file in K8S.rglob("kustomization.yaml"):
        spec = yaml.safe_load(file.read_text())
        entries = [
            *spec.get("resources", ()),
            *(p["path"] for p in spec.get("patches", ()) if "path" in p),
        ]
        named_files |= {(file.parent / entry).resolve() for entry in entries} | {file}
    assert set(K8S.rglob("*.yaml")) - named_files == set()
