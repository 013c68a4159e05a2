"""docker-compose.yml is what Compose takes, and keeps what it promises: without an engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness_worker.worker_process import KILL_AFTER_S
from tests.deploy.schemas import compose_faults
from tests.deploy.variables import unknown_variables

TOP = Path(__file__).parents[2]
FILE = TOP / "docker-compose.yml"
EXAMPLE = TOP / "deploy" / "env.example"
USED = re.compile(r"\$\{([A-Z_]+)(:[-?])?([^}]*)\}")
OURS = ("migrate", "migrate-post", "api", "worker", "scheduler", "flower")
RUNNING = (*OURS[2:], "postgres", "valkey", "proxy", "prometheus", "grafana")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return found


def environment(service: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = service.get("environment", {})
    return found


def test_compose_would_take_it(compose):
    assert compose_faults(compose) == []


def test_a_wrong_file_is_found(compose):
    api = {**compose["services"]["api"], "comand": ["api"]}
    assert compose_faults({"services": {"api": api}})
    api = {**compose["services"]["api"], "depends_on": {"migrate": {"condition": "soon"}}}
    assert compose_faults({"services": {"api": api}})


def test_two_of_each_and_one_of_what_holds_nothing_up(compose):
    services = compose["services"]
    assert set(services) == {*RUNNING, "migrate", "migrate-post"}
    assert services["api"]["deploy"]["replicas"] == 2
    assert services["scheduler"]["deploy"]["replicas"] == 2
    assert services["worker"]["deploy"]["replicas"] == "${HARNESS_WORKER_REPLICAS:-2}"


@pytest.mark.parametrize("name", RUNNING)
def test_it_is_looked_after(compose, name):
    service = compose["services"][name]
    assert service["healthcheck"]["test"], name
    assert service["restart"] == "unless-stopped"
    assert set(service["deploy"]["resources"]["limits"]) >= {"cpus", "memory"}
    assert service["logging"]["options"]["max-size"]


@pytest.mark.parametrize("name", [*RUNNING, "migrate", "migrate-post"])
def test_it_has_no_more_rights_than_it_needs(compose, name):
    service = compose["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert not any("docker.sock" in str(volume) for volume in service.get("volumes", ()))
    added = {"postgres": 5, "proxy": 1}
    assert len(service.get("cap_add", ())) == added.get(name, 0)


def test_nothing_starts_before_what_it_needs(compose):
    services = compose["services"]
    for name in ("api", "worker", "scheduler"):
        needs = {n: d["condition"] for n, d in services[name]["depends_on"].items()}
        assert needs == {
            "migrate": "service_completed_successfully",
            "postgres": "service_healthy",
            "valkey": "service_healthy",
        }
    for service in services.values():
        for needed, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[needed]


def test_only_the_door_is_open(compose):
    ports = {name: one["ports"] for name, one in compose["services"].items() if "ports" in one}
    assert set(ports) == {"proxy", "grafana"}
    assert all(port.startswith("127.0.0.1:") for port in ports["grafana"])
    assert compose["networks"]["inside"] == {"internal": True}
    inside_only = ("postgres", "valkey", "flower", "prometheus", "migrate")
    assert all(compose["services"][name]["networks"] == ["inside"] for name in inside_only)


def test_secrets_come_from_the_file_and_only_to_those_who_need_them(compose):
    holders: dict[str, set[str]] = {}
    text = FILE.read_text()
    for name, service in compose["services"].items():
        for value in [*environment(service).values(), *service.get("command", ())]:
            for variable, _, _ in USED.findall(str(value)):
                holders.setdefault(variable, set()).add(name)
    work, migrations = {"worker", "scheduler"}, {"migrate", "migrate-post"}
    assert holders["POSTGRES_PASSWORD"] == {"postgres", *migrations}
    assert holders["HARNESS_API_DB_PASSWORD"] == {"api", *migrations}
    assert holders["HARNESS_SYSTEM_DB_PASSWORD"] == {*work, *migrations}
    assert holders["HARNESS_SECRETS__KEK"] == {"api", *work, *migrations}
    # Keys are hashed with it, and webhooks signed: told by the API, sent by the scheduler.
    assert holders["HARNESS_API__KEY_PEPPER"] == {"migrate", "api", "scheduler"}
    assert holders["HARNESS_FLOWER__PASSWORD"] == {"api", "flower"}
    assert holders["VALKEY_PASSWORD"] == {"valkey", "api", "flower", *work, *migrations}
    assert not re.search(r"(?i)(password|secret|kek|pepper)[^\n]*:\s*[A-Za-z0-9+/=]{12,}\s*$", text)


def test_every_variable_is_in_the_example_and_the_other_way_round():
    written = set(re.findall(r"^(?:# )?([A-Z_]+)=", EXAMPLE.read_text(), re.MULTILINE))
    text = FILE.read_text()
    used = {variable for variable, _, _ in USED.findall(text)}
    used |= set(re.findall(r"^ +(HARNESS_[A-Z_]+):(?:  #.*)?$", text, re.MULTILINE))
    assert used == written


def test_what_has_no_default_must_be_set():
    """An empty password would be taken without a word."""
    empty = re.findall(r"^([A-Z_]+)=$", EXAMPLE.read_text(), re.MULTILINE)
    text = FILE.read_text()
    for variable in empty:
        uses = [kind for name, kind, _ in USED.findall(text) if name == variable]
        assert uses, variable
        assert set(uses) == {":?"}, variable


def test_every_setting_exists(compose):
    names = {n for service in OURS for n in environment(compose["services"][service])}
    assert unknown_variables(names) == []
    assert unknown_variables(["HARNESS_WORKER__CONCURENCY"]) == ["HARNESS_WORKER__CONCURENCY"]


def test_a_worker_may_drain_for_longer_than_its_grace(compose):
    worker = compose["services"]["worker"]
    ((_, _, grace_s),) = USED.findall(environment(worker)["HARNESS_WORKER__GRACE_S"])
    assert worker["stop_grace_period"] == "3m"
    assert float(grace_s) + KILL_AFTER_S < 180


def test_files_that_are_mounted_exist(compose):
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if source.startswith("./"):
                assert (TOP / source).exists(), volume
            else:
                assert source in compose["volumes"], volume


def test_the_api_believes_its_proxy(compose):
    """Else cookies are not marked Secure, and one person's failed logins make everybody wait."""
    assert environment(compose["services"]["api"])["FORWARDED_ALLOW_IPS"] == "*"
    assert "ports" not in compose["services"]["api"]
