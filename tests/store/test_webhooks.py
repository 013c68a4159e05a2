"""Webhooks over a real Postgres and a real server: queued with the event, signed, tried again."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy import update

from harness_common.core import webhook
from harness_common.core.errors import Conflict, LostOwnership
from harness_common.core.ids import encode
from harness_common.core.step import ModelAnswered
from harness_common.settings import EgressSettings, Settings
from harness_common.store import webhooks as store
from harness_common.store.audit import Actor
from harness_common.store.core_sql import run_core
from harness_common.store.keys import load_pepper
from harness_common.store.schema import webhooks
from harness_common.store.webhooks import _read
from harness_worker.scheduler.deliver import AT_ONCE, DeliverLoop
from harness_worker.scheduler.service import Scheduler, look_once
from tests.fakes.http_server import Page, serving
from tests.store.play import make_tenant, say, sql
from tests.worker.runtime import make_shared

ME = Actor("me")


@pytest.fixture
def server():
    with serving() as running:
        yield running


class Desk:
    """A tenant with a webhook, and the loop that delivers."""

    def __init__(self, db, play, server, shared):
        self.db, self.play, self.server, self.shared = db, play, server, shared
        self.loop = DeliverLoop(shared)

    async def add(self, *types, path="/hook"):
        url = self.server.url + path
        return await store.add_webhook(self.db, self.play.tenant_id, url, types, ME)

    async def end_a_run(self):
        run_id = await self.play.start()
        await self.play.step(run_id, say("secret answer"))
        return run_id

    async def deliver(self):
        begun = await self.loop.run_once(await look_once(self.shared))
        await asyncio.gather(*self.loop.sending)
        return begun

    async def deliveries(self, hook):
        return await store.list_deliveries(
            self.db, self.play.tenant_id, hook["id"], before=None, limit=50
        )

    async def make_due(self):
        await sql(
            self.db, "UPDATE webhook_deliveries SET next_at = now() WHERE next_at IS NOT NULL"
        )


@pytest.fixture
async def desk(db, play, server, tmp_path):
    settings = Settings(data_dir=tmp_path, egress=EgressSettings(loopback=True))
    load_pepper(settings)  # the API, which told the secrets, has made it
    server.pages["/hook"] = Page(b"ok")
    return Desk(db, play, server, await make_shared(db, settings=settings))


async def test_the_end_of_a_run_is_told_once_and_signed(desk, tmp_path):
    hook = await desk.add("run.succeeded", "run.failed")
    run_id = await desk.end_a_run()
    assert await desk.deliver() == 1
    assert await desk.deliver() == 0
    (seen,) = desk.server.seen
    told = json.loads(seen.body)
    assert (told["type"], told["data"]["run_id"]) == ("run.succeeded", encode("run", run_id))
    assert (told["data"]["agent"], told["data"]["status"]) == ("a", "succeeded")
    assert b"secret answer" not in seen.body
    # Standard Webhooks, by hand.
    secret = webhook.secret_of(load_pepper(desk.shared.settings), hook["id"], 1)
    key = base64.b64decode(secret.removeprefix("whsec_"))
    head = seen.headers
    signed = f"{head['webhook-id']}.{head['webhook-timestamp']}.".encode() + seen.body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert head["webhook-signature"] == f"v1,{expected}"
    (delivery,) = await desk.deliveries(hook)
    assert (delivery["status"], delivery["attempt"], delivery["response_status"]) == (
        "delivered", 1, 200,
    )  # fmt: skip
    assert head["webhook-id"] == encode("delivery", delivery["id"])


async def test_nothing_is_signed_with_a_secret_that_nobody_was_told(desk, tmp_path):
    """A scheduler that does not know the pepper of the API must not make one of its own."""
    await desk.add("run.succeeded")
    await desk.end_a_run()
    kept = (tmp_path / "pepper").rename(tmp_path / "elsewhere")
    assert await desk.deliver() == 0
    assert not (tmp_path / "pepper").exists()
    kept.rename(tmp_path / "pepper")
    assert await desk.deliver() == 1


async def test_it_is_queued_with_the_event_or_not_at_all(desk):
    """What is derived later can be lost; what is written beside it, told though it never was."""
    hook = await desk.add("run.succeeded")
    run_id = await desk.play.start()
    run = await desk.play.claim(run_id)
    await sql(desk.db, "UPDATE runs SET fence = fence + 1 WHERE id = :r", r=run_id)
    with pytest.raises(LostOwnership):
        await desk.play.settle(run, say())
    assert await desk.deliveries(hook) == []
    await desk.end_a_run()
    assert len(await desk.deliveries(hook)) == 1


async def test_one_that_is_removed_in_that_very_moment_costs_no_finished_step(desk, database_url):
    """The run would be ended as failed, its answer lost."""
    await desk.add("run.succeeded")
    run_id = await desk.play.start()
    run = await desk.play.claim(run_id)
    with psycopg.connect(database_url) as conn:
        conn.execute("DELETE FROM webhooks")
        settling = asyncio.create_task(desk.play.settle(run, say("it")))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(settling), 0.3)  # it waits for the webhook's row
        assert not settling.done()
        conn.commit()
    await settling
    assert (await desk.play.read(run_id)).state.output == "it"


async def test_only_what_was_asked_for_and_only_the_tenants_own(desk, db):
    hook = await desk.add("run.cancelled")
    other = await make_tenant(db)
    theirs = await store.add_webhook(db, other, desk.server.url + "/hook", ["run.succeeded"], ME)
    await desk.end_a_run()
    assert await desk.deliveries(hook) == []
    assert await store.list_deliveries(db, other, theirs["id"], before=None, limit=9) == []


async def test_a_used_up_budget_is_told_as_such(desk):
    hook = await desk.add("budget.exceeded")
    run_id = await desk.play.start(max_tokens=10)
    said = say(tools=["look"])
    assert isinstance(said, ModelAnswered)
    await desk.play.step(run_id, replace(said, input_tokens=50))
    (delivery,) = await desk.deliveries(hook)
    assert delivery["type"] == "budget.exceeded"


@pytest.mark.parametrize("page", [Page(status=500), Page(cut=True), Page(status=302)])
async def test_a_failure_is_tried_again_under_the_same_id(desk, page):
    hook = await desk.add("run.succeeded")
    desk.server.pages["/hook"] = page
    await desk.end_a_run()
    await desk.deliver()
    (delivery,) = await desk.deliveries(hook)
    assert (delivery["status"], delivery["attempt"]) == ("pending", 1)
    assert delivery["error"]
    assert await desk.deliver() == 0  # not before its time
    desk.server.pages["/hook"] = Page(b"ok")
    await desk.make_due()
    await desk.deliver()
    (delivery,) = await desk.deliveries(hook)
    assert (delivery["status"], delivery["attempt"]) == ("delivered", 2)
    assert len({s.headers["webhook-id"] for s in desk.server.seen}) == 1


async def test_one_that_never_answers_is_given_up_then_disabled_then_let_go(desk):
    hook = await desk.add("run.succeeded")
    desk.server.pages["/hook"] = Page(status=500)
    for _ in range(webhook.MOST_FAILURES):
        await desk.end_a_run()
    await sql(desk.db, "UPDATE webhook_deliveries SET attempt = 7")
    await desk.deliver()
    row = await store.read_webhook(desk.db, desk.play.tenant_id, hook["id"])
    assert row["disabled_at"] is not None
    assert "answered 500" in row["disabled_why"]
    assert {d["status"] for d in await desk.deliveries(hook)} == {"failed"}
    await desk.end_a_run()
    assert (await desk.deliveries(hook))[0]["status"] == "held"
    assert (await look_once(desk.shared)).deliver_in_s is None  # nothing keeps the scheduler busy
    with pytest.raises(Conflict):
        await store.send_test(desk.db, desk.play.tenant_id, hook["id"])
    desk.server.pages["/hook"] = Page(b"ok")
    await store.set_webhook(desk.db, desk.play.tenant_id, hook["id"], ME, disabled=False)
    assert await desk.deliver() == 1
    assert (await desk.deliveries(hook))[0]["status"] == "delivered"
    failed = (await desk.deliveries(hook))[-1]
    await store.redeliver(desk.db, desk.play.tenant_id, hook["id"], failed["id"], ME)
    await desk.deliver()
    assert (await desk.deliveries(hook))[-1]["status"] == "delivered"


async def test_gone_disables_at_once_and_holds_the_rest(desk):
    hook = await desk.add("run.succeeded")
    desk.server.pages["/hook"] = Page(status=410)
    await desk.end_a_run()
    await desk.deliver()
    row = await store.read_webhook(desk.db, desk.play.tenant_id, hook["id"])
    assert row["disabled_why"] == "it answered 410 Gone"


async def test_what_came_in_the_moment_of_a_disable_is_held_and_sent_later(desk):
    """An event that did not see it yet, or a scheduler that died after it, leaves it pending."""
    hook = await desk.add("run.succeeded")
    await desk.end_a_run()
    await sql(desk.db, "UPDATE webhooks SET disabled_at = now(), disabled_why = 'failures'")
    assert await desk.deliver() == 0
    assert desk.server.seen == []
    (delivery,) = await desk.deliveries(hook)
    assert delivery["status"] == "held"
    await store.set_webhook(desk.db, desk.play.tenant_id, hook["id"], ME, disabled=False)
    assert await desk.deliver() == 1
    (delivery,) = await desk.deliveries(hook)
    assert delivery["status"] == "delivered"


async def test_a_new_secret_signs_beside_the_old_one(desk):
    hook = await desk.add("run.succeeded")
    await store.rotate_secret(desk.db, desk.play.tenant_id, hook["id"], ME)
    await desk.end_a_run()
    await desk.deliver()
    assert len(desk.server.seen[0].headers["webhook-signature"].split()) == 2
    await sql(desk.db, "UPDATE webhooks SET rotated_at = now() - interval '25 hours'")
    await desk.end_a_run()
    await desk.deliver()
    assert len(desk.server.seen[1].headers["webhook-signature"].split()) == 1


async def test_an_address_inside_is_refused_and_said_so(desk):
    hook = await desk.add("run.succeeded")
    await sql(desk.db, "UPDATE webhooks SET url = 'http://169.254.169.254/'")
    await desk.end_a_run()
    await desk.deliver()
    (delivery,) = await desk.deliveries(hook)
    assert delivery["error"].startswith("refused")


class Deaf:
    """Never answers under `/deaf`; elsewhere it breaks with what nobody thought of."""

    def __init__(self):
        self.asked: Counter[str] = Counter()

    async def send(self, tenant_id, ask):
        del tenant_id
        self.asked[ask.url.rpartition("/")[2]] += 1
        if ask.url.endswith("/deaf"):
            await asyncio.Event().wait()
        raise KeyError("an interceptor's own fault")


async def test_one_that_never_answers_does_not_hold_up_the_others(desk):
    deaf: Any = Deaf()
    desk.loop = DeliverLoop(desk.shared, deaf)
    await desk.add("run.succeeded", path="/deaf")
    for _ in range(AT_ONCE + 5):
        await desk.end_a_run()
    await desk.loop.run_once(await look_once(desk.shared))
    assert 0 < deaf.asked["deaf"] < AT_ONCE
    other = await desk.add("run.succeeded", path="/other")
    for _ in range(2):
        await desk.end_a_run()
    async with asyncio.timeout(10):
        while deaf.asked["other"] < 2:
            await desk.loop.run_once(await look_once(desk.shared))
            await asyncio.sleep(0.05)
    assert deaf.asked["deaf"] < AT_ONCE
    for task in desk.loop.sending:
        task.cancel()
    told = await desk.deliveries(other)
    assert len(told) == 2


async def test_what_nobody_thought_of_is_a_failure_like_any_other(desk):
    """It would be tried every minute for a month."""
    deaf: Any = Deaf()
    desk.loop = DeliverLoop(desk.shared, deaf)
    hook = await desk.add("run.succeeded")
    await desk.end_a_run()
    await sql(desk.db, "UPDATE webhook_deliveries SET attempt = 7")
    await desk.deliver()
    (delivery,) = await desk.deliveries(hook)
    assert (delivery["status"], delivery["error"]) == ("failed", "not sent (KeyError)")


async def test_a_reader_does_not_wait_for_a_delivery_that_is_being_recorded(desk):
    hook = await desk.add("run.succeeded")
    async with desk.db.transaction() as conn:
        await run_core(conn, update(webhooks).values(failures=1), desk.db.timeout_s)
        async with asyncio.timeout(5):
            assert await desk.deliveries(hook) == []
            found = await store.read_webhook(desk.db, desk.play.tenant_id, hook["id"])
    assert found["failures"] == 0


async def test_a_change_of_a_webhook_holds_up_no_run_that_tells_it_something(desk):
    hook = await desk.add("run.succeeded")
    async with desk.db.tenant_transaction(desk.play.tenant_id) as conn:
        await _read(conn, desk.play.tenant_id, hook["id"], desk.db.timeout_s)
        async with asyncio.timeout(5):
            await desk.end_a_run()
    assert len(await desk.deliveries(hook)) == 1


async def test_a_scheduler_that_stops_records_what_it_is_sending(desk):
    """It would be sent again by the next one, a minute later."""
    hook = await desk.add("run.succeeded")
    desk.server.pages["/hook"] = Page(b"ok", wait=(answer := threading.Event()))
    await desk.end_a_run()
    scheduler = Scheduler(desk.shared.settings)
    channel = desk.shared.signals()
    await sql(desk.db, "UPDATE leader SET until = now()")
    serving = asyncio.create_task(
        scheduler.serve(desk.shared, channel, lambda shared: [DeliverLoop(shared)])
    )
    async with asyncio.timeout(10):
        while not desk.server.seen:  # noqa: ASYNC110 - another thread sees it
            await asyncio.sleep(0.01)
    scheduler.stop()
    asyncio.get_running_loop().call_later(0.5, answer.set)
    await serving
    (delivery,) = await desk.deliveries(hook)
    assert delivery["status"] == "delivered"


async def test_it_does_not_wait_for_ever(desk):
    deaf: Any = Deaf()
    loop = DeliverLoop(desk.shared, deaf)
    await desk.add("run.succeeded", path="/deaf")
    await desk.end_a_run()
    await loop.run_once(await look_once(desk.shared))
    async with asyncio.timeout(5):
        await loop.finish(0.05)
    (task,) = loop.sending
    task.cancel()


async def test_another_leader_takes_nothing(desk):
    await desk.add("run.succeeded")
    await desk.end_a_run()
    desk.shared.term += 1
    assert await desk.deliver() == 0


def test_the_vector_of_standard_webhooks():
    """From the specification's own example."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    assert (
        webhook.signature([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
        == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


def test_waits_grow_and_end():
    waits = [webhook.again_in_s(n, None, 0.0) for n in range(1, 9)]
    known = [wait for wait in waits if wait is not None]
    assert waits == [*sorted(known), None]
    assert webhook.again_in_s(1, 120.0, 0.5) == 120.0
    assert webhook.again_in_s(1, 1e9, 0.5) == 3_600.0
