"""Redis behind Sentinel: what its URL says, and a primary that dies in the middle of the work."""

from __future__ import annotations

import re
import time
from pathlib import Path
from uuid import uuid4

import pytest
from pydantic import ValidationError

from harness_common.broker.app import celery_config, make_app
from harness_common.broker.publish import Bell, Doorbell
from harness_common.coord.redis import RedisFault, connect
from harness_common.redis_url import SentinelUrl, parse_sentinel, sync_client
from harness_common.settings import RedisSettings, Settings
from tests.deploy.sentinels import _URL_PASSWORD, PASSWORD, Sentinels
from tests.e2e.stack import Stack
from tests.e2e.test_kill import AGENT, audit, submit, wait_for_all
from tests.flower.conftest import start_flower, stop, until


def test_a_url_of_sentinels():
    found = parse_sentinel("sentinel://:p%40ss@one:1,two/prime%20ary/3?sentinel_password=w%2Fx")
    assert found == SentinelUrl((("one", 1), ("two", 26379)), "prime ary", 3, None, "p@ss", "w/x")
    assert found.for_kombu() == "sentinel://:p%40ss@one:1/3;sentinel://:p%40ss@two:26379/3"
    assert found.for_people() == "sentinel://one:1,two:26379/prime ary/3"
    assert parse_sentinel("sentinel://u:p@[::1]:7/m").nodes == (("::1", 7),)
    assert parse_sentinel("sentinel://u:p@[::1]:7/m").for_kombu() == "sentinel://u:p@[::1]:7/0"
    assert parse_sentinel("sentinel://[::1]/m").nodes == (("::1", 26379),)


@pytest.mark.parametrize(
    "url",
    [
        "sentinel://one:26379",
        "sentinel://:pw@/primary",
        "sentinel://one:port/primary",
        "sentinel://one/primary/first",
        "sentinel://one/primary?sentinel_pasword=x",
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url):
    with pytest.raises(ValidationError) as refused:
        Settings(redis_url=url)
    (fault,) = refused.value.errors(include_input=False, include_url=False)
    assert "Sentinel" in fault["msg"]
    assert "pw" not in fault["msg"]


def test_the_broker_asks_the_same_sentinels():
    config = celery_config(Settings(redis_url="sentinel://:pw@one:1,two:2/primary/5"))
    assert config["broker_url"] == "sentinel://:pw@one:1/5;sentinel://:pw@two:2/5"
    assert config["broker_transport_options"]["master_name"] == "primary"
    assert config["broker_transport"].endswith(":SentinelTransport")


@pytest.fixture
def sentinels(services_dir: Path, tmp_path_factory):
    folder = services_dir / "sentinels"
    folder.mkdir(exist_ok=True)
    with Sentinels(folder) as running:
        yield running


async def test_a_client_finds_the_new_primary(sentinels):
    client = connect(sentinels.url, RedisSettings(), name="harness-worker-x")
    await client.set("k", "v")
    assert "harness-worker-x" in {one["name"] for one in await client.client_list()}
    with sync_client(sentinels.url, timeout_s=1) as other:
        assert other.get("k") == b"v"
    old = sentinels.kill_primary()
    with pytest.raises(RedisFault):
        await client.get("k")
    sentinels.wait_for_another(old)
    deadline = time.monotonic() + 10
    while True:
        try:
            assert await client.set("k", "w")
            break
        except RedisFault:
            assert time.monotonic() < deadline
    await client.aclose()


def test_flower_shows_the_queues_of_the_primary(sentinels, services_dir):
    bell = Bell(make_app(Settings(redis_url=sentinels.url)))
    flower = start_flower(services_dir, sentinels.url)
    try:
        bell.ring(Doorbell(uuid4(), uuid4(), 1, "steps.default", 6, ring=1, step=1))

        def shown() -> str:
            page = flower.get("/flower/broker").text
            found = re.search(r'<tr id="steps.default">.*?</tr>', page, re.DOTALL)
            return page if found and ">1<" in re.sub(r"\s", "", found[0]) else ""

        page = until(shown, 30, "the doorbell is counted")
        assert f"{sentinels.ports[2]},127.0.0.1" in page, "the address names all of them"
        assert PASSWORD not in page + flower.log.read_text()
        assert _URL_PASSWORD not in page + flower.log.read_text()
    finally:
        bell.close()
        stop(flower.process)


@pytest.mark.nightly
@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_a_primary_dies_in_the_middle_and_nothing_is_lost(sentinels):
    """INV1, INV2, INV5, INV7: with leases, doorbells and signals all on the server that dies."""
    with Stack(apis=2, schedulers=2, processes=2, HARNESS_REDIS_URL=sentinels.url) as stack:
        with stack.client() as client:
            assert client.post("/v1/agents", json=AGENT).status_code == 201
        ids = submit(stack, 60)
        time.sleep(0.5)
        old = sentinels.kill_primary()
        ids += submit(stack, 60)  # accepted without Redis
        sentinels.wait_for_another(old)
        ids += submit(stack, 30)
        began = time.monotonic()
        wait_for_all(stack, ids, 120)
        print(f"all ended {time.monotonic() - began:.1f} s after the fail-over")  # noqa: T201
        audit(stack, ids)
        died = stack.query("SELECT count(*) AS n FROM workers WHERE died_at IS NOT NULL")
        assert died == [{"n": 0}], "a fail-over condemned a worker"
