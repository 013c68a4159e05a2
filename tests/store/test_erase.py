"""Erasure: of a user or a tenant nothing is left, in no table and no file; others keep all."""

from __future__ import annotations

import asyncio
import os
import time
from uuid import UUID

import psycopg
import pytest

from harness_common.blobs.local import LocalBlobs
from harness_common.commands import StartRun, cancel_run, start_run
from harness_common.core.errors import LostOwnership
from harness_common.core.ids import encode
from harness_common.core.run import Status
from harness_common.settings import RetentionSettings, Settings
from harness_common.store.artifacts import save_artifact
from harness_common.store.audit import Actor
from harness_common.store.erasures import ask_erasure, preview_erasure, read_erasure
from harness_common.store.sessions import create_session
from harness_worker.scheduler import erase as erasing
from harness_worker.scheduler.blob_sweep import sweep
from harness_worker.scheduler.erase import EraseLoop
from harness_worker.scheduler.service import look_once
from tests.store.play import Play, make_tenant, ran, say, sql, undeletable
from tests.store.tenancy import TENANT_TABLES, two_tenants
from tests.worker.runtime import make_shared

CANARY = "canary7f3a"
ANN = "ann.19c4"


@pytest.fixture
def blobs(tmp_path):
    return LocalBlobs(tmp_path / "blobs")


@pytest.fixture
async def shared(db):
    return await make_shared(db, settings=Settings(retention=RetentionSettings(batch_rows=100)))


def found_in(database_url: str, folder, word: str) -> set[str]:
    """Search all text of all rows, and all files, for a word."""
    out = set()
    with psycopg.connect(database_url) as conn:
        tables = conn.execute(
            "SELECT c.relname FROM pg_class c WHERE c.relkind = 'r' "
            "AND c.relnamespace = 'public'::regnamespace"
        ).fetchall()
        for (table,) in tables:
            query = f"SELECT count(*) FROM {table} t WHERE t::text LIKE '%{word}%'"
            if conn.execute(query).fetchone() != (0,):
                out.add(table.rstrip("0123456789_"))
    files = [p for p in folder.rglob("*") if p.is_file() and word.encode() in p.read_bytes()]
    return out | {"blobs" for _ in files}


async def live(play: Play, blobs, user: str, word: str) -> tuple[UUID, UUID]:
    """Make a finished run of a user and one under way, which say a word wherever they can."""
    kept = {"user_id": user, "tags": {"about": word}, "title": word}
    done = await play.start(f"my {word}", **kept)
    await play.step(done, say(f"look at {word}", tools=["look"]))
    await play.step(done, ran(f"found {word}"))
    await play.step(done, say(f"it is {word}"))
    data = f"{word} and {play.tenant_id} {user}".encode()
    await save_artifact(
        play.db, blobs, play.tenant_id, done, name=word, media_type="text/plain", data=data
    )
    going = await play.start(f"more {word}", **kept)
    await play.step(going, say(f"look at {word}", tools=["look"]))
    await cancel_run(play.db, play.tenant_id, done, by="x", reason=word, actor=Actor("key"))
    for whose, digest in ((user, "a"), (None, "b")):
        await sql(
            play.db,
            "INSERT INTO memories (tenant_id, scope, user_id, body, digest, provenance) VALUES "
            "(:t, 'a', cast(:u AS text), :w, :d, jsonb_build_object('run', cast(:r AS text)))",
            t=play.tenant_id, u=whose, w=word, d=digest + user, r=encode("run", done),
        )  # fmt: skip
    await sql(
        play.db,
        "INSERT INTO audit (tenant_id, actor, action, target, detail) VALUES (:t, 'key', "
        "'run.cancel', :r, jsonb_build_object('reason', cast(:w AS text)))",
        t=play.tenant_id, r=encode("run", done), w=word,
    )  # fmt: skip
    await create_session(
        play.db, play.tenant_id, title=word, user_id=user, metadata={"w": word}, actor=Actor("k")
    )
    return done, going


async def work_off(shared, blobs, loop=None, *, most=400) -> None:
    """Let the scheduler do it to the end; files look old to it."""
    loop = loop or EraseLoop(shared)
    for _ in range(most):
        pause_s = await loop.step()
        if pause_s:
            _look_old(blobs)
            await sweep(shared, blobs, grace_s=0)
            if not await sql(
                shared.db, "SELECT 1 FROM erasures WHERE finished_at IS NULL AND subject <> 'x'"
            ):
                return
    raise AssertionError("the erasure does not end")


def _look_old(blobs):
    old = time.time() - 1000
    for path in blobs._root.rglob("*"):
        if path.is_file():
            os.utime(path, (old, old))


async def test_of_a_user_nothing_is_left_and_others_keep_all(
    play, db, shared, blobs, database_url, tmp_path
):
    other = Play(db, await make_tenant(db))
    done, going = await live(play, blobs, ANN, CANARY)
    await live(play, blobs, "bob", "canarybob")
    await live(other, blobs, ANN, "canaryother")
    before = await preview_erasure(db, play.tenant_id, ANN)
    assert (before["runs"], before["live_runs"], before["artifacts"]) == (2, 1, 1)
    assert (before["sessions"], before["memories"]) == (3, 2)
    there = found_in(database_url, tmp_path, CANARY)
    assert there >= {"runs", "messages", "sessions", "memories", "audit", "blobs", "artifacts"}
    asked, _ = await ask_erasure(db, play.tenant_id, play.tenant_id, ANN, actor=Actor("key_1"))
    claimed = await play.claim(going)
    loop = EraseLoop(shared)
    for _ in range(5):
        assert await loop.step() > 0, "it waits for the step under way"
    assert (await play.read(going)).state.cancel_requested
    assert await sql(db, "SELECT 1 FROM messages WHERE run_id = :r", r=done) != []
    await play.settle(claimed, ran(f"late {CANARY}"))
    assert (await play.read(going)).state.status is Status.CANCELLED
    await work_off(shared, blobs, loop)
    assert found_in(database_url, tmp_path, CANARY) == set()
    assert found_in(database_url, tmp_path, "canarybob") >= {"runs", "blobs", "memories", "audit"}
    assert found_in(database_url, tmp_path, "canaryother") >= {"runs", "blobs", "memories"}
    row = await read_erasure(db, play.tenant_id, asked["id"])
    assert (row["phase"], row["user_id"], row["counts"]["runs"]) == ("done", None, 2)
    trail = await sql(db, "SELECT * FROM audit WHERE action = 'user.erased'")
    assert [(t["actor"], t["detail"]["runs"]) for t in trail] == [("key_1", 2)]
    kept = await sql(db, "SELECT detail FROM audit WHERE target = :r", r=encode("run", done))
    assert kept[0]["detail"] == {"erased": True}


async def test_a_request_is_one_however_often_it_is_asked(play, db, shared, blobs):
    first, made = await ask_erasure(db, play.tenant_id, play.tenant_id, "u", actor=Actor("k"))
    again, twice = await ask_erasure(db, play.tenant_id, play.tenant_id, "u", actor=Actor("k"))
    assert (made, twice, again["id"]) == (True, False, first["id"])
    await work_off(shared, blobs)
    later, anew = await ask_erasure(db, play.tenant_id, play.tenant_id, "u", actor=Actor("k"))
    assert anew
    assert later["id"] != first["id"]
    await work_off(shared, blobs)


async def test_it_goes_on_after_the_scheduler_died(play, db, shared, blobs, database_url, tmp_path):
    for _ in range(6):
        _, going = await live(play, blobs, ANN + str(time.monotonic()), CANARY)
        await cancel_run(db, play.tenant_id, going, by="x")
    await sql(db, "UPDATE sessions SET user_id = :u", u=ANN)
    await ask_erasure(db, play.tenant_id, play.tenant_id, ANN, actor=Actor("k"))
    loop = EraseLoop(shared)
    for _ in range(2):
        await loop.step()  # a batch, and this scheduler is no more
    left = await sql(db, "SELECT count(*) AS n FROM runs")
    assert 0 < left[0]["n"] < 12
    await work_off(shared, blobs)
    assert found_in(database_url, tmp_path, CANARY) == set()


async def test_of_a_tenant_nothing_is_left_in_any_table(db, shared, blobs, database_url, tmp_path):
    with psycopg.connect(database_url) as conn:
        gone, stays = two_tenants(conn)
    operator = await make_tenant(db)
    play = Play(db, await make_tenant(db))
    await live(play, blobs, ANN, CANARY)
    for target in (gone, play.tenant_id):
        await sql(db, "UPDATE runs SET finished_at = clock_timestamp(), status = 'failed' "
                  "WHERE tenant_id = :t AND status <> 'waiting_tool' AND id NOT IN "
                  "(SELECT id FROM runs WHERE session_id IN (SELECT id FROM sessions "
                  "WHERE user_id IS NOT NULL))", t=target)  # fmt: skip
        await ask_erasure(db, operator, target, None, actor=Actor("key_op"))
    await work_off(shared, blobs)
    assert found_in(database_url, tmp_path, CANARY) == set()
    with psycopg.connect(database_url) as conn:
        for table in TENANT_TABLES:
            counted = {
                tenant: conn.execute(
                    f"SELECT count(*) FROM {table.name} WHERE tenant_id = %s", (tenant,)
                ).fetchone()
                for tenant in (gone, play.tenant_id, stays)
            }
            assert counted[gone] == counted[play.tenant_id] == (0,), table.name
            assert counted[stays] != (0,) or table.name == "blob_garbage", table.name
    trail = await sql(db, "SELECT tenant_id, actor FROM audit WHERE action = 'tenant.erased'")
    assert trail == [{"tenant_id": operator, "actor": "key_op"}] * 2, "and no row of others"


async def test_a_tenant_that_is_being_erased_is_closed_first(play, db, shared, blobs):
    operator = await make_tenant(db)
    run_id = await play.start()
    held = await play.claim(run_id)
    await ask_erasure(db, operator, play.tenant_id, None, actor=Actor("k"))
    loop = EraseLoop(shared)
    assert await loop.step() > 0
    later = await start_run(db, play.tenant_id, StartRun("a", "too late"))
    assert later.status is Status.QUEUED
    await play.settle(held, say("done"))
    await work_off(shared, blobs, loop)
    assert await sql(db, "SELECT 1 FROM runs WHERE tenant_id = :t", t=play.tenant_id) == []


async def test_a_request_does_not_wait_for_one_that_waits_for_somebody_else(play, db, shared):
    """A step that takes its time, or a blob store that is away, must not put off another's."""
    going = await play.start(user_id="slow")
    await play.claim(going)
    await ask_erasure(db, play.tenant_id, play.tenant_id, "slow", actor=Actor("k"))
    loop = EraseLoop(shared)
    assert await loop.step() > 0, "it waits for the step under way"
    later = await play.start(user_id="later")
    await ask_erasure(db, play.tenant_id, play.tenant_id, "later", actor=Actor("k"))
    async with asyncio.timeout(10):
        while await sql(db, "SELECT 1 FROM runs WHERE id = :r", r=later):
            await loop.step()
    assert (await play.read(going)).state.status is Status.RUNNING


async def test_however_many_wait_the_one_behind_them_is_done(play, db, shared, monkeypatch):
    monkeypatch.setattr(erasing, "EVERY_S", 0.0)
    for n in range(21):
        await play.claim(await play.start(user_id=f"slow{n}"))
        await ask_erasure(db, play.tenant_id, play.tenant_id, f"slow{n}", actor=Actor("k"))
    later = await play.start(user_id="later")
    await ask_erasure(db, play.tenant_id, play.tenant_id, "later", actor=Actor("k"))
    loop = EraseLoop(shared)
    async with asyncio.timeout(20):
        while await sql(db, "SELECT 1 FROM runs WHERE id = :r", r=later):
            await loop.step()


async def test_one_that_fails_does_not_hold_up_the_others(play, db, shared, database_url):
    """INV15."""
    other = Play(db, await make_tenant(db))
    for one in (play, other):
        await one.start(user_id=ANN)
        await cancel_all(one)
        await ask_erasure(db, one.tenant_id, one.tenant_id, ANN, actor=Actor("k"))
    loop = EraseLoop(shared)
    with undeletable(database_url, play.tenant_id):
        async with asyncio.timeout(20):
            while await sql(db, "SELECT 1 FROM runs WHERE tenant_id = :t", t=other.tenant_id):
                loop._next = 0.0
                await loop.run_once(await look_once(shared))


async def test_its_blobs_go_without_waiting_for_the_next_round_of_retention(
    play, db, shared, blobs, tmp_path
):
    await live(play, blobs, ANN, CANARY)
    await cancel_all(play)
    asked, _ = await ask_erasure(db, play.tenant_id, play.tenant_id, ANN, actor=Actor("k"))
    loop = EraseLoop(shared, blobs)
    for _ in range(100):
        if await loop.step():
            break
    assert (await read_erasure(db, play.tenant_id, asked["id"]))["phase"] == "blobs"
    _look_old(blobs)
    await sql(db, "UPDATE blob_garbage SET look_at = look_at - interval '2 minutes'")
    for _ in range(3):
        await loop.step()
    assert (await read_erasure(db, play.tenant_id, asked["id"]))["phase"] == "done"
    assert [
        p for p in tmp_path.rglob("*") if p.is_file() and CANARY.encode() in p.read_bytes()
    ] == []


async def cancel_all(play: Play) -> None:
    for row in await sql(play.db, "SELECT id FROM runs WHERE finished_at IS NULL"):
        await cancel_run(play.db, play.tenant_id, row["id"], by="x")


async def test_the_files_of_a_tenant_go_also_when_no_run_has_them(db, shared, blobs, tmp_path):
    operator, tenant_id = await make_tenant(db), await make_tenant(db)
    data = CANARY.encode()
    await save_artifact(db, blobs, tenant_id, None, name="n", media_type="text/plain", data=data)
    await ask_erasure(db, operator, tenant_id, None, actor=Actor("op"))
    await work_off(shared, blobs)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


async def test_who_was_cut_off_leaves_no_file_of_a_run_that_is_gone(
    play, db, shared, blobs, tmp_path
):
    run_id = await play.start(user_id=ANN)
    await cancel_all(play)
    await ask_erasure(db, play.tenant_id, play.tenant_id, ANN, actor=Actor("k"))
    await work_off(shared, blobs)
    data = CANARY.encode()
    with pytest.raises(LostOwnership):
        await save_artifact(
            db, blobs, play.tenant_id, run_id, name="n", media_type="text/plain", data=data
        )
    assert await sql(db, "SELECT 1 FROM artifacts") == []
    _look_old(blobs)
    await sweep(shared, blobs, grace_s=0)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
