"""Flower as a process: where it listens, what it serves, what it knows of doorbells and queues, and
that it finds its way back.
"""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from harness_common.broker.publish import Doorbell
from harness_common.core.ids import encode
from harness_common.core.lease import quarantine_of
from harness_common.embedded import EmbeddedValkey
from harness_common.flower.__main__ import set_options
from harness_common.flower.hearing import EXIT_BLIND
from harness_common.settings import FlowerSettings, Settings
from tests.flower.conftest import FlowerProcess, start_flower, stop, until
from tests.flower.deaf_proxy import DeafProxy

pytestmark = pytest.mark.timeout(240)

Ring = Callable[[Doorbell], None]


def doorbell(queue: str = "steps.default", priority: int = 6) -> Doorbell:
    return Doorbell(uuid4(), uuid4(), 7, queue, priority, ring=2, step=4)


def lengths(flower: FlowerProcess) -> dict[str, tuple[int, int]]:
    """Read messages and consumers of each queue off the page."""
    page = flower.get("/flower/broker").text
    found = {}
    for row in re.findall(r'<tr id="(steps[^"]*)">(.*?)</tr>', page, re.DOTALL):
        cells = [int(c) if c.isdigit() else -1 for c in re.findall(r"<td[^>]*>(.*?)</td>", row[1])]
        assert cells[1] == cells[3], "what is ready is what is there"
        found[row[0]] = (cells[1], cells[4])
    return found


def test_no_other_address_of_this_machine_reaches_it(flower: FlowerProcess) -> None:
    socket.create_connection(("127.0.0.1", flower.port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", flower.port), timeout=5)


def test_it_listens_elsewhere_only_with_a_password() -> None:
    with pytest.raises(SystemExit, match="HARNESS_FLOWER__PASSWORD"):
        set_options(Settings(flower=FlowerSettings(host="0.0.0.0")))


@pytest.mark.parametrize("path", ["/", "/workers", "/tasks", "/broker", "/api/workers"])
def test_a_page_needs_the_password(flower: FlowerProcess, path: str) -> None:
    assert flower.get(f"/flower{path}", password=None).status_code == 401
    assert flower.get(f"/flower{path}", password="another").status_code == 401
    assert flower.get(f"/flower{path}").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/metrics", "/login", "/api/tasks", "/api/queues/length"),
        *("/api/task/async-apply/harness.step", "/api/worker/shutdown/x", "/api/task/result/x"),
    ],
)
def test_what_acts_or_tells_more_has_no_route(flower: FlowerProcess, path: str) -> None:
    assert flower.get(f"/flower{path}").status_code == 404


def test_a_doorbell_is_found_by_run_and_says_step_and_tenant(
    flower: FlowerProcess, ring: Ring
) -> None:
    bell = doorbell()
    run = encode("run", bell.run_id)
    ring(bell)
    (task,) = until(lambda: flower.tasks(run), 10, "the doorbell is shown")
    assert task["uuid"] == f"{bell.run_id.hex}.v7.r2"
    assert task["args"] == f"(step 4, v7, {encode('tenant', bell.tenant_id)}, {run})"
    assert task["name"] == "harness.step"
    page = flower.get(f"/flower/task/{task['uuid']}").text
    assert run in page
    assert "step 4" in page


def test_queues_are_counted_over_priorities_also_those_that_nobody_serves(
    flower: FlowerProcess, ring: Ring, idle_worker: str
) -> None:
    until(lambda: idle_worker in str(flower.get("/flower/workers?json=1").json()), 60, "a worker")
    before = lengths(flower).get("steps.default", (0, 0))[0]
    lone = quarantine_of("steps.default")
    for queue, priority in [
        *(("steps.default", p) for p in (0, 3, 6, 9)),
        *(("steps.gpu", 6), ("steps.gpu", 6), (lone, 6)),
    ]:
        ring(doorbell(queue, priority=priority))
    expected = {
        "steps.default": (before + 4, 0),
        "steps.gpu": (2, 0),
        lone: (1, 0),
        "steps.idle": (0, 1),
    }
    until(lambda: lengths(flower) == expected, 15, f"{expected}, not {lengths(flower)}")
    assert flower.get(f"/flower/worker/{idle_worker}").status_code == 200


@pytest.mark.nightly
def test_it_hears_again_soon_after_the_broker_was_away(
    flower: FlowerProcess, broker: EmbeddedValkey, ring: Ring
) -> None:
    broker.stop()
    time.sleep(13)  # kombu by itself would look again 20 s after the loss, Flower much later
    broker.start()
    back = time.monotonic()

    def heard() -> bool:
        bell = doorbell()
        ring(bell)
        time.sleep(0.3)
        return bool(flower.tasks(encode("run", bell.run_id)))

    until(heard, 5, "events after the outage")
    assert time.monotonic() - back < 5
    assert flower.process.poll() is None


def test_sigterm_ends_it_at_once_with_the_broker_away(
    broker: EmbeddedValkey, services_dir: Path
) -> None:
    nowhere = re.sub(r":\d+/", ":1/", broker.url)
    flower = start_flower(services_dir, nowhere)
    flower.process.send_signal(signal.SIGTERM)
    assert flower.process.wait(2) == 0


@pytest.mark.nightly
def test_it_ends_when_workers_answer_and_none_of_their_events_comes(
    broker: EmbeddedValkey, services_dir: Path, idle_worker: str
) -> None:
    with DeafProxy("127.0.0.1", broker.port) as proxy:
        url = broker.url.replace(f":{broker.port}/", f":{proxy.port}/")
        assert urlsplit(url).port == proxy.port
        flower = start_flower(services_dir, url, HARNESS_FLOWER__BLIND_AFTER_S="4")
        try:
            until(lambda: idle_worker in flower.get("/flower/workers?json=1").text, 60, "events")
            time.sleep(6)
            assert flower.process.poll() is None, "it hears, and stays"
            proxy.deaf = True
            assert flower.process.wait(30) == EXIT_BLIND
        finally:
            stop(flower.process)
    assert "flower.blind" in flower.log.read_text()
