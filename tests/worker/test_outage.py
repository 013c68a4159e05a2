import asyncio
import time

from harness_common.coord.redis import connect
from harness_common.core.errors import LostOwnership
from harness_common.settings import RedisSettings
from harness_worker.scheduler.dispatch import DispatchLoop
from harness_worker.scheduler.reap import ReapLoop
from harness_worker.scheduler.service import look_once
from tests.store.play import make_worker, say, sql
from tests.worker.test_head_of_line import shared_of


async def test_a_postgres_outage_condemns_nobody(play, db):
    """Postgres was away for 20 s: no worker could beat. The scheduler is back first."""
    await sql(db, "DELETE FROM workers WHERE true")
    a, b = await make_worker(db), await make_worker(db)
    ra, rb = await play.start(), await play.start()
    runs = [await play.claim(ra, a), await play.claim(rb, b)]
    await sql(
        db, "UPDATE workers SET seen_at = clock_timestamp() - interval '20 s'"
    )  # = the outage
    s = await shared_of(db)  # a fresh term, as after DatabaseUnavailable
    reap = ReapLoop(s)

    async def none():
        return None

    reap._connected = none
    await reap.run_once(await look_once(s))
    lost = 0
    for run in runs:  # settle was patient all the while (60 s)
        try:
            await play.settle(run, say("a four-minute answer"))
        except LostOwnership:
            lost += 1
    assert lost == 0, (
        f"{lost} of 2 finished answers thrown away, deaths={[(await play.read(r)).state.deaths for r in (ra, rb)]}"
    )


async def test_a_silent_redis_does_not_cost_the_leadership(play, db):
    async def mute(r, w):
        while await r.read(65536):
            pass

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    s = await shared_of(db)
    s.redis = connect(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", RedisSettings())
    look = await look_once(s)
    began = time.monotonic()
    for loop in (ReapLoop(s), DispatchLoop(s)):
        await loop.run_once(look)
    took = time.monotonic() - began
    server.close()
    assert took < s.settings.scheduler.leader_ttl_s, (
        f"one tick {took:.1f} s > leader_ttl {s.settings.scheduler.leader_ttl_s} s"
    )


def test_error_text_with_a_surrogate_can_be_committed():
    from datetime import UTC, datetime

    from harness_common.core.inputs import StepDone
    from harness_common.core.rules import advance
    from harness_common.core.run import RunState, Status
    from harness_common.core.step import CallOutcome, ToolsDone
    from harness_worker.tools.runner import _failed

    ended = _failed(
        "t", "ValueError", "cannot read " + b"caf\xe9.txt".decode(errors="surrogateescape")
    )
    o = CallOutcome(0, "c", "t", ended.status, ended.content)
    advance(
        RunState(status=Status.RUNNING, claimed=True, next_kind="tools", step=1),
        [StepDone(ToolsDone((o,)), datetime.now(UTC))],
        datetime.now(UTC),
    )
