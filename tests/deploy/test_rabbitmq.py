"""RabbitMQ as the broker: priorities, confirms, and a restart in the middle of the work."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from harness_common.broker.app import celery_config, make_app
from harness_common.broker.publish import Bell, Doorbell
from harness_common.broker.queues import step_queue, wire_priority
from harness_common.settings import Settings
from tests.deploy.rabbit import Rabbit
from tests.e2e.stack import Stack
from tests.e2e.test_kill import AGENT, audit, submit, wait_for_all

REDIS = "redis://127.0.0.1:1/0"


def test_rabbitmq_counts_priorities_the_other_way_round():
    """Sent as they are, background work would go before everything else."""
    rabbit = make_app(Settings(redis_url=REDIS, broker_url="amqp://u:p@one//"))
    assert [wire_priority(rabbit, p) for p in (0, 6, 9)] == [9, 3, 0]
    assert [wire_priority(make_app(Settings(redis_url=REDIS)), p) for p in (0, 6, 9)] == [0, 6, 9]


def test_nothing_of_redis_is_told_to_rabbitmq():
    config = celery_config(Settings(redis_url=REDIS, broker_url="amqp://u:p@one//"))
    assert "global_keyprefix" not in config["broker_transport_options"]
    assert config["broker_transport"] is None
    assert config["worker_disable_prefetch"] is False


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("rabbit")
    with Rabbit(folder) as running:
        yield running


def bell_for(n: int, priority: int) -> Doorbell:
    return Doorbell(uuid4(), UUID(int=n), 1, "steps.test", priority)


def taken(rabbit: Rabbit, count: int) -> list[int]:
    """Take so many doorbells from the queue; which runs they ring for."""
    found: list[int] = []
    with rabbit.connection() as conn:
        queue = step_queue("steps.test")(conn.channel())
        deadline = time.monotonic() + 10
        while len(found) < count and time.monotonic() < deadline:
            message = queue.get(no_ack=True)
            if message is not None:
                found.append(UUID(hex=message.decode()[0][1]).int)
    return found


def until(holds, what: str) -> None:
    deadline = time.monotonic() + 15
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_urgent_doorbells_go_first_and_survive_a_restart(rabbit):
    bell = Bell(make_app(Settings(redis_url=REDIS, broker_url=rabbit.url)))
    for n, priority in enumerate((9, 6, 0, 3), 1):
        bell.ring(bell_for(n, priority))
    until(lambda: bell.rung == 4, "the doorbells were not confirmed")
    rabbit.stop()
    rabbit.start()
    assert taken(rabbit, 4) == [3, 4, 2, 1]
    bell.ring(bell_for(5, 6))  # over a connection that is gone
    until(lambda: bell.rung == 5, "an idle connection that was closed cost a doorbell")
    assert (bell.lost, bell.renewed) == (0, 1)
    rabbit.stop(signal.SIGKILL)
    bell.ring(bell_for(6, 6))
    until(lambda: bell.lost == 1, "a doorbell without a broker was not given up")
    assert not bell.works
    rabbit.start()
    bell.ring(bell_for(7, 6))
    until(lambda: bell.works, "the broker was not found again")
    assert taken(rabbit, 2) == [5, 7]
    bell.close()


@pytest.mark.nightly
@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_runs_finish_over_a_broker_that_restarts(rabbit, how):
    """INV1, INV2, INV5: a lost doorbell is rung again, an answered one does no harm."""
    with Stack(apis=2, schedulers=2, processes=2, HARNESS_BROKER_URL=rabbit.url) as stack:
        with stack.client() as client:
            assert client.post("/v1/agents", json=AGENT).status_code == 201
        ids = submit(stack, 60)
        time.sleep(0.5)
        rabbit.stop(how)
        ids += submit(stack, 30)  # accepted without a broker
        time.sleep(3)
        rabbit.start()
        ids += submit(stack, 30)
        began = time.monotonic()
        wait_for_all(stack, ids, 120)
        print(f"all ended {time.monotonic() - began:.1f} s after the broker was back")  # noqa: T201
        audit(stack, ids)
        died = stack.query("SELECT count(*) AS n FROM workers WHERE died_at IS NOT NULL")
        assert died == [{"n": 0}]
