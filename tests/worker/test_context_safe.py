"""What a compaction keeps to itself: secrets, encrypted tenants, a session's memory that is too
long.
"""

from __future__ import annotations

import json

import psycopg
import pytest

from harness_common.core.context_view import is_summary
from harness_common.core.run import Status
from harness_common.crypto.keks import make_kek, parse_keks
from harness_common.redaction import MARK, redactor
from harness_common.store.audit import Actor
from harness_common.store.context_reads import read_context
from harness_common.store.db import Database
from harness_common.store.encryption import set_encryption
from harness_common.store.keyring import Keyring
from harness_common.store.sessions import read_session
from tests.store.play import Play, make_tenant, sql
from tests.worker.context_bench import CountingServer, open_bench
from tests.worker.test_context_forks import SMALL

SECRET = "hunter-22-and-more"


async def test_no_secret_is_summarised(db, play):
    """Canary: the model said it, so it stands in its message; it goes no further than that."""
    redactor.add(play.tenant_id, SECRET)
    server = CountingServer(14, summary=f"Done:\n- logged in with {SECRET}")
    server.said = lambda n: f"Look {n} with {SECRET}."
    async with open_bench(db, play, server) as bench:
        await bench.agent(context=SMALL)
        run = await bench.run(f"Count with {SECRET}.")
        assert run.state.status is Status.SUCCEEDED
        summaries = [m.text() for m in await play.messages(run.id) if is_summary(m)]
        assert summaries
        assert not any(SECRET in text for text in summaries)
        assert all(MARK in text for text in summaries)
        asked = json.dumps(server.summary_bodies)
        assert server.summary_bodies
        assert SECRET not in asked
        (row,) = await sql(db, "SELECT memory_summary AS s FROM sessions")
        assert SECRET not in row["s"]
        assert MARK in row["s"]


async def test_a_tenant_that_wants_encryption_has_no_plain_prompt_anywhere(database_url, db):
    del db  # which empties the tables afterwards
    ring = Keyring(parse_keks(make_kek("k1")))
    async with Database(database_url, keyring=ring) as keyed:
        play = Play(keyed, await make_tenant(keyed))
        await set_encryption(
            keyed, ring, play.tenant_id, on=True, new_key=False, actor=Actor("test")
        )
        server = CountingServer(14)
        async with open_bench(keyed, play, server) as bench:
            await bench.agent(context=SMALL, system="Marmalade counts cars.")
            run = await bench.run("Count the marmalade cars.")
            assert run.state.status is Status.SUCCEEDED, run.state.error
            assert await bench.payloads(run.id, "context.compacted")
        for table in ("context_parts", "messages", "events", "checkpoints", "sessions", "runs"):
            rows = await sql_plain(database_url, f"SELECT t::text AS t FROM {table} t")
            assert rows
            assert not [r for r in rows if "armalade" in r], table
        seen = await read_context(keyed, play.tenant_id, run.id, run.state.step)
        assert seen.system == "Marmalade counts cars."
        assert seen.tools[0]["name"] == "look"
        assert "marmalade" in seen.shown[0].message.text()
        session = await read_session(keyed, play.tenant_id, run.session_id)
        assert "marmalade" in session["memory_summary"]


async def sql_plain(url, statement):
    """Read as somebody without a key does."""
    async with await psycopg.AsyncConnection.connect(url) as conn:
        return [r[0] for r in await (await conn.execute(statement)).fetchall()]


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("x" * 2_047, True),
        ("x" * 2_048, False),
        ("hsealed1." + "x" * 3_000, True),
        ("hsealed1." + "x" * 3_070, False),
    ],
)
async def test_a_sessions_memory_of_2_kb_is_refused(db, play, text, fits):
    await play.start()
    statement = "UPDATE sessions SET memory_summary = :s"
    if fits:
        await sql(db, statement, s=text)
    else:
        with pytest.raises(psycopg.errors.CheckViolation):
            await sql(db, statement, s=text)
