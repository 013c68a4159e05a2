"""What is past its age goes, in batches that nobody waits for; what a live run needs stays."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from harness_common.blobs.local import LocalBlobs
from harness_common.commands import ForkRun, cancel_run, fork_run, retry_run
from harness_common.commands.fork import _source
from harness_common.core.errors import Conflict, NotFound
from harness_common.settings import RetentionSettings, Settings
from harness_common.store import wipe
from harness_common.store.artifacts import read_artifact, save_artifact
from harness_common.store.partitions import lowest_id, week_start
from harness_common.store.run_reads import read_events
from harness_common.store.schema import metadata
from harness_worker.scheduler.blob_sweep import sweep
from harness_worker.scheduler.looper import Shared
from harness_worker.scheduler.retention import AGAIN_S, RetentionLoop
from harness_worker.scheduler.service import look_once
from tests.store.play import Play, make_tenant, ran, say, sql, undeletable
from tests.store.test_scheduler import lead


@pytest.fixture
def blobs(tmp_path):
    return LocalBlobs(tmp_path / "blobs")


@pytest.fixture
async def shared(db) -> Shared:
    leading: Shared = await lead(db)
    return leading


async def prune(shared: Shared, blobs, **days: int | float) -> int:
    """Do a whole round with these ages of the settings; return the rows that batches deleted."""
    config = RetentionSettings(**days)
    shared.settings = Settings(retention=config)
    return sum([rows async for rows in RetentionLoop(shared, blobs).round()])


async def finished(play: Play, days: float = 0, **more) -> UUID:
    """Run: model, tools, model; ended so many days ago."""
    run_id = await play.start(**more)
    await play.step(run_id, say("first", tools=["look"]))
    await play.step(run_id, ran("one"))
    await play.step(run_id, say("the end"))
    await age(play, run_id, days)
    return run_id


async def age(play: Play, run_id: UUID, days: float) -> None:
    await sql(
        play.db,
        "UPDATE runs SET finished_at = clock_timestamp() - make_interval(secs => :s) WHERE id = :r",
        s=days * 86_400.0,
        r=run_id,
    )


async def left(db, run_id: UUID) -> dict[str, int]:
    """Count the rows that a run has, by table."""
    out = {}
    for table in ("events", "checkpoints", "artifacts", "messages", "tool_calls"):
        rows = await sql(db, f"SELECT count(*) AS n FROM {table} WHERE run_id = :r", r=run_id)
        out[table] = rows[0]["n"]
    (row,) = await sql(db, "SELECT count(*) AS n FROM runs WHERE id = :r", r=run_id)
    return out | {"runs": row["n"]}


async def gone(db, run_id: UUID) -> set[str]:
    return {table for table, n in (await left(db, run_id)).items() if n == 0}


def save(play, blobs, run_id, data=b"bytes"):
    return save_artifact(
        play.db, blobs, play.tenant_id, run_id, name="n", media_type="text/plain", data=data
    )


@pytest.mark.parametrize("kind", ["events", "checkpoints", "artifacts"])
async def test_each_kind_has_its_age(play, db, shared, blobs, kind):
    old, young = await finished(play, 3), await finished(play, 1)
    for run_id in (old, young):
        await save(play, blobs, run_id)
    await prune(shared, blobs, **{f"{kind}_days": 2})
    assert await gone(db, old) == {kind}
    assert await gone(db, young) == set()
    run = await play.read(old)
    assert run.state.output == "the end"


async def test_a_run_goes_with_all_that_it_has(play, db, shared, blobs):
    old, young = await finished(play, 3), await finished(play, 1)
    await save(play, blobs, old)
    for run_id in (old, young):
        for statement in (
            "INSERT INTO foreign_checkpoints (tenant_id, thread, ns, checkpoint_id, kind, snapshot)"
            " VALUES (:t, :h, '', 'c', 'k', 'x')",
            "INSERT INTO foreign_writes (tenant_id, thread, ns, checkpoint_id, task_id, idx, "
            "task_path, channel, kind, snapshot) VALUES (:t, :h, '', 'c', 'k', 0, '', '', '', 'x')",
            "INSERT INTO context_parts (tenant_id, digest, run_id) VALUES (:t, :h, :r)",
            "INSERT INTO repairs (tenant_id, run_id, step, agent, model) VALUES (:t, :r, 1, '', "
            "left(:h, 1))",
            "INSERT INTO memories (tenant_id, scope, body, digest, provenance) VALUES (:t, 'a', "
            ":h, :h, jsonb_build_object('run', 'run_' || :h, 'agent', 'a@1'))",
        ):
            values = {"t": play.tenant_id, "h": run_id.hex, "r": run_id}
            await sql(db, statement, **{k: v for k, v in values.items() if f":{k}" in statement})
    await prune(shared, blobs, runs_days=2)
    assert await gone(db, old) == {*await left(db, old)}
    for table in {t.name for t in metadata.sorted_tables if "run_id" in t.columns}:
        rows = await sql(db, f"SELECT 1 FROM {table} WHERE run_id = :r", r=old)
        assert rows == [], table
    for table in ("foreign_checkpoints", "foreign_writes"):
        rows = await sql(db, f"SELECT thread FROM {table}")
        assert rows == [{"thread": young.hex}]
    facts = await sql(db, "SELECT provenance FROM memories ORDER BY id")
    assert [f["provenance"] for f in facts] == [
        {"agent": "a@1", "run_pruned": True},
        {"run": f"run_{young.hex}", "agent": "a@1"},
    ]
    sessions = await sql(db, "SELECT id FROM sessions")
    assert [s["id"] for s in sessions] == [(await play.read(young)).session_id]
    await play.check_whole(young)


@pytest.mark.parametrize("first", [True, False])
async def test_one_tenants_odd_row_keeps_nobody_elses_past(db, shared, blobs, database_url, first):
    """INV15: the round would end there, every hour."""
    plays = [Play(db, await make_tenant(db)) for _ in range(2)]
    odd, fine = sorted(plays, key=lambda p: p.tenant_id, reverse=not first)
    stays, goes = [await finished(play, 3) for play in (odd, fine)]
    with undeletable(database_url, odd.tenant_id):
        await prune(shared, blobs, runs_days=2)
        assert await gone(db, goes) == {*await left(db, goes)}
        assert "runs" not in await gone(db, stays)
        assert shared.counts["retention_failures"] >= 1
    await prune(shared, blobs, runs_days=2)
    assert "runs" in await gone(db, stays)


@pytest.mark.parametrize("first", [True, False])
async def test_nor_do_rows_of_a_tenant_that_are_held(db, shared, blobs, database_url, first):
    plays = [Play(db, await make_tenant(db)) for _ in range(2)]
    held, fine = sorted(plays, key=lambda p: p.tenant_id, reverse=not first)
    stays, goes = [await finished(play, 3) for play in (held, fine)]
    shared.settings = Settings(retention=RetentionSettings(runs_days=2))
    loop = RetentionLoop(shared, blobs)
    with psycopg.connect(database_url) as conn:
        conn.execute("SELECT 1 FROM messages WHERE run_id = %s FOR UPDATE", (stays,))
        async with asyncio.timeout(10):
            while "runs" not in await gone(db, goes):
                loop._next = 0.0
                await loop.run_once(await look_once(shared))
            while loop._round is not None:
                loop._next = 0.0
                await loop.run_once(await look_once(shared))
    assert 0 < loop._next - time.monotonic() <= AGAIN_S, "the rest is done soon"
    assert "runs" not in await gone(db, stays)


def test_no_table_that_names_a_run_was_forgotten():
    known = frozenset().union(*wipe.TABLES.values()) | {"schedule_firings", "blob_garbage"}
    named = {t.name for t in metadata.sorted_tables if {"run_id", "thread"} & set(t.columns.keys())}
    assert named <= known


async def test_two_tenants_have_their_own_ages(play, db, shared, blobs):
    other = Play(db, await make_tenant(db))
    mine, theirs = await finished(play, 3), await finished(other, 3)
    for tenant_id, days in ((play.tenant_id, 5), (other.tenant_id, 2)):
        await sql(
            db,
            "INSERT INTO retention (tenant_id, events_days, runs_days, changed_by) "
            "VALUES (:t, :d, 30, '')",
            t=tenant_id,
            d=days,
        )
    await prune(shared, blobs, events_days=1, checkpoints_days=1)
    assert await gone(db, mine) == {"checkpoints", "artifacts"}
    assert await gone(db, theirs) == {"events", "checkpoints", "artifacts"}


async def test_nothing_goes_when_nobody_has_said_how_long(play, db, shared, blobs):
    run_id = await finished(play, 30_000)
    await prune(shared, blobs)
    assert await gone(db, run_id) == {"artifacts"}


async def live_fork(play, run_id):
    made = await fork_run(play.db, play.tenant_id, run_id, ForkRun(created_by="x"))
    return made.run_id


async def live_retry(play, run_id):
    await sql(play.db, "UPDATE runs SET status = 'failed' WHERE id = :r", r=run_id)
    return (await retry_run(play.db, play.tenant_id, run_id, created_by="x")).run_id


async def next_in_session(play, run_id):
    return await play.start(session_id=(await play.read(run_id)).session_id)


async def live_parent(play, run_id):
    parent = await play.start()
    await sql(
        play.db,
        "UPDATE runs SET parent_run_id = :p, parent_step = 1, parent_idx = 0 WHERE id = :r",
        p=parent,
        r=run_id,
    )
    return parent


async def live_child(play, run_id):
    child = await play.start()
    await sql(
        play.db,
        "UPDATE runs SET parent_run_id = :p, parent_step = 1, parent_idx = 0 WHERE id = :r",
        p=run_id,
        r=child,
    )
    return child


@pytest.mark.parametrize("needs", [live_fork, live_retry, next_in_session, live_parent, live_child])
async def test_what_a_live_run_needs_stays_until_it_is_over(play, db, shared, blobs, needs):
    run_id = await finished(play, 3)
    await save(play, blobs, run_id)
    live = await needs(play, run_id)
    days = {"events_days": 1, "checkpoints_days": 1, "artifacts_days": 1, "runs_days": 2}
    await prune(shared, blobs, **days)
    assert await gone(db, run_id) == set()
    await cancel_run(db, play.tenant_id, live, by="x")
    await age(play, live, 10)
    for _ in range(2):  # forks go before what they came from
        await prune(shared, blobs, **days)
    assert await gone(db, run_id) == {*await left(db, run_id)}
    assert await sql(db, "SELECT 1 FROM sessions") == []


async def test_a_live_run_is_never_touched_however_old(play, db, shared, blobs):
    run_id = await play.start()
    await play.step(run_id, say("first", tools=["look"]))
    await sql(db, "UPDATE runs SET created_at = '2001-01-01'")
    await prune(shared, blobs, events_days=1, checkpoints_days=1, runs_days=1)
    await play.step(run_id, ran("one"))
    await play.step(run_id, say("the end"))
    await play.check_whole(run_id)


async def test_a_fork_keeps_the_files_of_its_source_until_its_own_time_is_over(
    play, db, shared, blobs
):
    source = await finished(play, 9)
    art = await save(play, blobs, source, b"a chart")
    fork = await live_fork(play, source)
    await cancel_run(db, play.tenant_id, fork, by="x")
    await prune(shared, blobs, artifacts_days=2)
    assert (await read_artifact(db, blobs, play.tenant_id, art))[1] == b"a chart"
    await age(play, fork, 9)
    for _ in range(2):
        await prune(shared, blobs, artifacts_days=2)
    with pytest.raises(NotFound):
        await read_artifact(db, blobs, play.tenant_id, art)


async def test_who_forks_and_who_prunes_do_not_meet_halfway(play, db, shared, blobs):
    run_id = await finished(play, 3)
    async with db.tenant_transaction(play.tenant_id) as conn:
        await _source(db, conn, play.tenant_id, run_id)
        await prune(shared, blobs, runs_days=2)
        assert await gone(db, run_id) == {"artifacts"}
    await prune(shared, blobs, runs_days=2)
    with pytest.raises(NotFound):
        await live_fork(play, run_id)


async def test_without_checkpoints_a_run_is_read_and_not_forked(play, db, shared, blobs):
    run_id = await finished(play, 3)
    await prune(shared, blobs, checkpoints_days=2, events_days=2)
    with pytest.raises(Conflict) as refused:
        await live_fork(play, run_id)
    assert refused.value.error_code == "CHECKPOINTS_PRUNED"
    made = await fork_run(db, play.tenant_id, run_id, ForkRun(step=0, input="again"))
    assert (await play.read(made.run_id)).state.step == 0
    page = await read_events(db, play.tenant_id, run_id, after=0, limit=10)
    assert (page.events, page.ended) == ([], True)


async def test_a_long_run_goes_by_pieces_and_may_be_broken_off(play, db, shared, blobs):
    run_id = await finished(play, 3)
    await sql(
        db,
        "INSERT INTO events (tenant_id, run_id, seq, type) "
        "SELECT :t, :r, 100 + n, 'x' FROM generate_series(1, 950) AS n",
        t=play.tenant_id,
        r=run_id,
    )
    await sql(
        db,
        "INSERT INTO messages (tenant_id, run_id, n, step, role, trust, body) "
        "SELECT :t, :r, 100 + n, 1, 'user', '', '{}' FROM generate_series(1, 450) AS n",
        t=play.tenant_id,
        r=run_id,
    )
    await sql(db, "UPDATE runs SET next_seq = 1051 WHERE id = :r", r=run_id)
    shared.settings = Settings(retention=RetentionSettings(runs_days=2, batch_rows=100))
    before = after = await left(db, run_id)
    work = RetentionLoop(shared, blobs).round()
    for _ in range(5):
        await anext(work)
        after = await left(db, run_id)
        assert before["events"] - after["events"] <= 100
        before = after
    assert 0 < after["events"] < 900
    assert after["runs"] == 1
    with pytest.raises(NotFound):
        await live_fork(play, run_id)
    await work.aclose()
    await prune(shared, blobs, runs_days=2, batch_rows=100)
    assert await gone(db, run_id) == {*before}


async def test_no_more_runs_are_held_than_a_batch_takes(play, db, shared, blobs, monkeypatch):
    """What a look holds and does not take is work for nothing, each time anew."""
    for _ in range(60):
        await finished(play, 3)
    picks = []
    loop = RetentionLoop(shared, blobs)
    plain = loop._sql

    async def seen(conn, name, params):
        rows = await plain(conn, name, params)
        if name == "prune_pick":
            picks.append(len(rows))
        return rows

    monkeypatch.setattr(loop, "_sql", seen)
    loop._config = RetentionSettings(runs_days=2, batch_rows=400)
    counted = "SELECT count(*) AS n FROM runs"
    wiped = [60 - (await sql(db, counted))[0]["n"] async for _ in loop.round()]
    assert wiped[-1] == 60
    held = sum(picks)
    assert held <= 60 * 1.3, f"{held} runs were held to take 60: {picks}"
    most = max(b - a for a, b in zip([0, *wiped], wiped, strict=False))
    assert most > 15, f"a batch had room for more: {wiped}"


async def put_into_week(play: Play, run_id: UUID, start: datetime) -> UUID:
    """Copy a run with an id of another week."""
    made = UUID(int=lowest_id(start + timedelta(days=2)).int | uuid4().int & (2**64 - 1))
    for table, column in (("runs", "id"), ("events", "run_id"), ("checkpoints", "run_id")):
        await sql(
            play.db,
            f"INSERT INTO {table} SELECT (jsonb_populate_record(t, jsonb_build_object('{column}', "
            f"cast(:m AS uuid)))).* FROM {table} t WHERE {column} = :r",
            m=made,
            r=run_id,
        )
    return made


async def partitions(db) -> set[str]:
    return {row["name"] for row in await db.fetch("partitions_list", {})}


async def test_a_week_of_which_nothing_is_kept_is_dropped(play, db, shared, blobs):
    start = week_start(datetime.now(UTC)) - timedelta(weeks=3)
    names = {f"{table}_{start:%Y%m%d}" for table in ("events", "checkpoints")}
    for table in ("events", "checkpoints"):
        await sql(db, "SELECT make_partition(:t, :s)", t=table, s=start)
    seed = await finished(play, 12)
    old, older = [await put_into_week(play, seed, start) for _ in range(2)]
    await prune(shared, blobs, events_days=15, checkpoints_days=5)
    assert await partitions(db) & names == {f"events_{start:%Y%m%d}"}
    assert {*await gone(db, old)} == {"checkpoints", "artifacts", "messages", "tool_calls"}
    fork = await sql(db, "UPDATE runs SET forked_from = :o WHERE id = :r RETURNING id", o=older,
                     r=await play.start())  # fmt: skip
    await prune(shared, blobs, events_days=5)
    assert f"events_{start:%Y%m%d}" in await partitions(db), "a live run needs one of it"
    assert "events" in await gone(db, old)
    assert "events" not in await gone(db, older)
    await cancel_run(db, play.tenant_id, fork[0]["id"], by="x")
    await age(play, fork[0]["id"], 10)
    for _ in range(2):
        await prune(shared, blobs, events_days=5)
    assert await partitions(db) & names == set()
    assert (await sql(db, "SELECT pruned FROM runs WHERE id = :r", r=old)) == [{"pruned": 3}]


async def test_who_reads_a_week_for_long_holds_up_nothing_else(
    play, db, shared, blobs, database_url
):
    start = week_start(datetime.now(UTC)) - timedelta(weeks=3)
    name = f"events_{start:%Y%m%d}"
    await sql(db, "SELECT make_partition('events', :s)", s=start)
    late = await finished(play, 10)
    with psycopg.connect(database_url) as conn:
        conn.execute(f"SELECT 1 FROM {name}")
        await prune(shared, blobs, events_days=5)
        assert name in await partitions(db)
        assert "events" in await gone(db, late)
    await prune(shared, blobs, events_days=5)
    assert name not in await partitions(db)


async def test_no_week_is_dropped_by_whoever_asks(db, play):
    now = datetime.now(UTC)
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        await sql(db, "SELECT drop_partition('events', :s)", s=week_start(now))
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        await sql(db, "SELECT drop_partition('runs', :s)", s=week_start(now) - timedelta(weeks=9))


async def test_the_same_bytes_stay_for_whoever_else_has_them(play, db, shared, blobs):
    other = Play(db, await make_tenant(db))
    mine, theirs = await finished(play, 3), await finished(other, 1)
    for one, run_id in ((play, mine), (other, theirs)):
        await save(one, blobs, run_id, b"the same")
    digest = await blobs.put(b"the same")
    old = time.time() - 100
    await prune(shared, blobs, artifacts_days=2)
    os.utime(blobs.path(digest), (old, old))
    await sweep(shared, blobs, grace_s=0)
    assert await blobs.get(digest) == b"the same"
    assert await sql(db, "SELECT 1 FROM blob_garbage") == []
    await age(other, theirs, 3)
    await prune(shared, blobs, artifacts_days=2)
    await sweep(shared, blobs, grace_s=0)
    with pytest.raises(FileNotFoundError):
        await blobs.get(digest)


async def test_bytes_that_were_just_kept_again_are_not_deleted(blobs):
    digest = await blobs.put(b"once more")
    assert not await blobs.delete(digest, unused_s=60)
    old = time.time() - 100
    os.utime(blobs.path(digest), (old, old))
    assert await blobs.put(b"once more") == digest
    assert not await blobs.delete(digest, unused_s=60)
    os.utime(blobs.path(digest), (old, old))
    assert await blobs.delete(digest, unused_s=60)
    assert await blobs.delete(digest, unused_s=60)
    assert list(blobs.path(digest).parent.iterdir()) == []


async def test_a_tick_does_one_batch_and_then_rests(play, db, shared, blobs):
    for _ in range(3):
        await finished(play, 3)
    shared.settings = Settings(retention=RetentionSettings(runs_days=2, share=0.5))
    loop, look = RetentionLoop(shared, blobs), await look_once(shared)
    begun = time.monotonic()
    for _ in range(100):
        await loop.run_once(look)
        assert shared.again_in_s is None or shared.again_in_s >= 0
        if await sql(db, "SELECT count(*) AS n FROM runs") == [{"n": 0}]:
            break
        before = await sql(db, "SELECT count(*) AS n FROM runs")
        await loop.run_once(look)  # too early: nothing
        assert await sql(db, "SELECT count(*) AS n FROM runs") == before
        await asyncio.sleep(shared.again_in_s or 0.01)
        shared.again_in_s = None
    assert await sql(db, "SELECT count(*) AS n FROM runs") == [{"n": 0}]
    assert time.monotonic() - begun < 10


async def test_a_deposed_scheduler_deletes_nothing(play, db, shared, blobs):
    run_id = await finished(play, 3)
    shared.term -= 1
    with pytest.raises(Conflict):
        await prune(shared, blobs, runs_days=2)
    assert await gone(db, run_id) == {"artifacts"}


async def test_a_run_that_somebody_holds_is_passed_over(play, db, shared, blobs):
    held, free = await finished(play, 3), await finished(play, 3)
    async with db.transaction() as conn:
        await conn.execute("SELECT 1 FROM runs WHERE id = %s FOR UPDATE", (held,))
        await prune(shared, blobs, events_days=2)
    assert "events" not in await gone(db, held)
    assert "events" in await gone(db, free)


class Died(BaseException):
    """The death of a process."""


class Dying(LocalBlobs):
    """Keeps bytes, and then the process is gone."""

    async def put(self, data: bytes) -> str:
        await super().put(data)
        raise Died


async def test_bytes_that_nobody_lived_to_name_go(play, db, shared, blobs, tmp_path):
    """Not soon: a step that is under way names right after what it has kept."""
    run_id, dying = await play.start(), Dying(tmp_path / "blobs")
    digest = await blobs.put(b"nobody's")
    old = time.time() - 100
    with pytest.raises(Died):
        await save(play, dying, run_id, b"nobody's")
    os.utime(blobs.path(digest), (old, old))
    await sweep(shared, blobs)
    assert await blobs.get(digest) == b"nobody's"
    await sql(db, "UPDATE blob_garbage SET look_at = look_at - interval '62 minutes'")
    await sweep(shared, blobs)
    with pytest.raises(FileNotFoundError):
        await blobs.get(digest)
    await save(play, blobs, run_id, b"somebody's")
    assert await sql(db, "SELECT 1 FROM blob_garbage") == [], "what is named needs no note"


class Slow:
    """A store that takes its time, or (`stuck`) never answers."""

    def __init__(self, *, stuck: bool = False) -> None:
        self.asked, self.stuck = 0, stuck

    async def delete(self, digest: str, unused_s: float) -> bool:
        del digest, unused_s
        self.asked += 1
        await asyncio.sleep(60.0 if self.stuck else 0.1)
        return True


async def test_a_sweep_is_over_before_the_leader_must_renew_its_term(db, shared, tenant_id):
    """Two hundred blobs, one after the other, or one in a store that does not answer."""
    await sql(
        db,
        "INSERT INTO blob_garbage (tenant_id, sha256) "
        "SELECT :t, n::text FROM generate_series(1, 250) AS n",
        t=tenant_id,
    )
    slow: Any = Slow()
    stuck: Any = Slow(stuck=True)
    async with asyncio.timeout(shared.settings.scheduler.leader_ttl_s / 2):
        assert await sweep(shared, slow, grace_s=0) == 200, "there is more"
    assert 0 < slow.asked < 20
    async with asyncio.timeout(shared.settings.scheduler.leader_ttl_s / 2):
        assert await sweep(shared, stuck, grace_s=0) == 0
    assert stuck.asked == 1
    (left,) = await sql(db, "SELECT count(*) AS n FROM blob_garbage")
    assert left["n"] == 250 - slow.asked
