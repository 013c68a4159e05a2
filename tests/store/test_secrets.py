"""Secrets and encrypted bodies in a real Postgres: what is stored, who can open it, and how keys
are changed.
"""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest

from harness_common.blobs.local import LocalBlobs
from harness_common.commands import ForkRun, fork_run
from harness_common.commands.control import steer_run
from harness_common.core.errors import Conflict, Invalid, NotFound
from harness_common.core.ids import decode
from harness_common.core.inputs import StepDone
from harness_common.core.rules import advance
from harness_common.core.run import Status
from harness_common.crypto.aead import CannotDecrypt, KeyMissing
from harness_common.crypto.keks import make_kek, parse_keks
from harness_common.redaction import MARK, Redactor
from harness_common.settings import SecretSettings, Settings
from harness_common.store import keyring as keyring_module
from harness_common.store import secrets as secrets_module
from harness_common.store.apply import group_commit
from harness_common.store.artifacts import plain_digest, read_artifact, save_artifact
from harness_common.store.audit import Actor
from harness_common.store.audit_reads import list_audit
from harness_common.store.claim import Want, claim, load_history
from harness_common.store.db import Database
from harness_common.store.encryption import read_encryption, read_wrapping, rewrap, set_encryption
from harness_common.store.keyring import Keyring, load_keks
from harness_common.store.run_reads import read_events, read_messages, read_tool_calls, view_run
from harness_common.store.secret_values import TenantSecrets
from harness_common.store.secrets import delete_secret, list_secrets, put_secret
from harness_common.store.writes import Applied, StepRecord, Write
from tests.store.play import WHEN, Play, make_tenant, ran, say, sql

ACTOR = Actor("a test")
K1, K2 = make_kek("k1"), make_kek("k2")


def database(url, keks, **more):
    return Database(url, keyring=Keyring(parse_keks(keks)), **more)


@pytest.fixture
async def keyed(database_url, db):
    """Open the database as a process that has the key-encryption key `k1`."""
    del db  # which empties the tables afterwards
    async with database(database_url, K1) as opened:
        yield opened


@pytest.fixture
async def mine(keyed):
    return Play(keyed, await make_tenant(keyed))


def secrets_of(db):
    return TenantSecrets(db, cache_s=0, known=Redactor())


async def turn_on(db, tenant_id, *, new_key=False):
    await set_encryption(db, db.keyring, tenant_id, on=True, new_key=new_key, actor=ACTOR)


# --- secrets ------------------------------------------------------------------------------------


async def test_a_secret_is_stored_encrypted_and_resolved(keyed, mine):
    shown = await put_secret(keyed, mine.tenant_id, "TOKEN", "hunter-22", ACTOR)
    assert (shown["version"], shown["set_by"], "value" in shown) == (1, "a test", False)
    (row,) = await sql(keyed, "SELECT t::text AS t FROM secrets t")
    assert "hunter-22" not in row["t"]
    assert b"hunter-22".hex() not in row["t"]
    secrets = secrets_of(keyed)
    text = "Bearer secret://TOKEN, again secret://TOKEN."
    assert await secrets.resolve(mine.tenant_id, text) == "Bearer hunter-22, again hunter-22."
    assert await secrets.resolve(mine.tenant_id, "no reference") == "no reference"
    (listed,) = await list_secrets(keyed, mine.tenant_id, limit=10)
    assert listed["last_used_at"] is not None


async def test_setting_again_replaces_and_deleting_ends_it(keyed, mine):
    secrets = secrets_of(keyed)
    await put_secret(keyed, mine.tenant_id, "TOKEN", "the first", ACTOR)
    await put_secret(keyed, mine.tenant_id, "TOKEN", "the second", ACTOR)
    assert await secrets.value(mine.tenant_id, "TOKEN") == "the second"
    await delete_secret(keyed, mine.tenant_id, "TOKEN", ACTOR)
    with pytest.raises(NotFound, match="harness secrets set TOKEN") as caught:
        await secrets.value(mine.tenant_id, "TOKEN")
    assert caught.value.error_code == "SECRET_NOT_FOUND"
    with pytest.raises(NotFound):
        await delete_secret(keyed, mine.tenant_id, "TOKEN", ACTOR)
    rows = await list_audit(keyed, mine.tenant_id, before=None, limit=10)
    assert [(r["action"], r["target"], r["detail"]) for r in rows] == [
        ("secret.delete", "TOKEN", {"version": 2}),
        ("secret.set", "TOKEN", {"version": 2}),
        ("secret.set", "TOKEN", {"version": 1}),
    ]


async def test_a_value_is_known_to_the_redactor_before_anybody_has_it(keyed, mine):
    known = Redactor()
    await put_secret(keyed, mine.tenant_id, "TOKEN", "hunter-22", ACTOR)
    await TenantSecrets(keyed, known=known).value(mine.tenant_id, "TOKEN")
    assert known.clean(mine.tenant_id, "hunter-22") == MARK


async def test_the_cache_spares_the_database_for_a_while(keyed, mine):
    await put_secret(keyed, mine.tenant_id, "TOKEN", "the first", ACTOR)
    kept, fresh = TenantSecrets(keyed, cache_s=60), secrets_of(keyed)
    assert await kept.value(mine.tenant_id, "TOKEN") == "the first"
    await put_secret(keyed, mine.tenant_id, "TOKEN", "the second", ACTOR)
    assert await kept.value(mine.tenant_id, "TOKEN") == "the first"
    assert await fresh.value(mine.tenant_id, "TOKEN") == "the second"


async def test_tenants_do_not_share_secrets(keyed, mine):
    other = await make_tenant(keyed)
    await put_secret(keyed, mine.tenant_id, "TOKEN", "hunter-22", ACTOR)
    with pytest.raises(NotFound):
        await secrets_of(keyed).value(other, "TOKEN")
    await put_secret(keyed, other, "TOKEN", "another-1", ACTOR)
    assert await secrets_of(keyed).value(mine.tenant_id, "TOKEN") == "hunter-22"


@pytest.mark.parametrize("value", ["", "abc", "ää", "x" * 70_000, "nul\0inside"])
async def test_what_cannot_be_a_secret_is_refused_without_being_said(keyed, mine, value):
    with pytest.raises(Invalid) as caught:
        await put_secret(keyed, mine.tenant_id, "TOKEN", value, ACTOR)
    assert len(value) < 3 or value not in caught.value.message


async def test_a_tenant_has_a_bounded_number_of_secrets(keyed, mine, monkeypatch):
    monkeypatch.setattr(secrets_module, "MAX_SECRETS", 2)
    for name in ("A", "B"):
        await put_secret(keyed, mine.tenant_id, name, "hunter-22", ACTOR)
    with pytest.raises(Conflict, match="2 secrets"):
        await put_secret(keyed, mine.tenant_id, "C", "hunter-22", ACTOR)
    await put_secret(keyed, mine.tenant_id, "B", "hunter-33", ACTOR)
    assert len(await list_secrets(keyed, mine.tenant_id, limit=10)) == 2


@pytest.mark.parametrize("swap", ["name", "tenant", "version", "byte"])
async def test_a_ciphertext_in_another_place_opens_nothing(keyed, mine, swap):
    """The whole row of another secret, put in this one's place by somebody with the database."""
    other = await make_tenant(keyed)
    for tenant_id, name in ((mine.tenant_id, "A"), (mine.tenant_id, "B"), (other, "A")):
        await put_secret(keyed, tenant_id, name, f"value of {name}", ACTOR)
    change = {
        "name": "value = (SELECT value FROM secrets WHERE tenant_id = :t AND name = 'B')",
        "tenant": "value = (SELECT value FROM secrets WHERE tenant_id = :o AND name = 'A')",
        "version": "version = version + 1, tenant_id = coalesce(tenant_id, :o)",
        "byte": "value = set_byte(value, 30, get_byte(value, 30) # 1)",
    }[swap]
    statement = f"UPDATE secrets SET {change} WHERE tenant_id = :t AND name = 'A'"
    if ":o" in change:
        await sql(keyed, f"{statement} RETURNING 1", t=mine.tenant_id, o=other)
    else:
        await sql(keyed, f"{statement} RETURNING 1", t=mine.tenant_id)
    with pytest.raises(CannotDecrypt, match="secret 'A'"):
        await secrets_of(keyed).value(mine.tenant_id, "A")
    assert await secrets_of(keyed).value(mine.tenant_id, "B") == "value of B"


# --- key-encryption keys ------------------------------------------------------------------------


async def test_without_a_key_encryption_key_nothing_is_stored(db):
    tenant_id = await make_tenant(db)
    with pytest.raises(KeyMissing, match="HARNESS_SECRETS__KEK"):
        await put_secret(db, tenant_id, "TOKEN", "hunter-22", ACTOR)
    with pytest.raises(KeyMissing, match="HARNESS_SECRETS__KEK"):
        await set_encryption(db, Keyring(), tenant_id, on=True, new_key=False, actor=ACTOR)
    assert await sql(db, "SELECT 1 AS x FROM secrets") == []
    assert (await read_encryption(db, tenant_id))["encrypted_since"] is None


async def test_a_wrong_key_of_the_same_name_is_an_error_never_garbage(keyed, mine, database_url):
    await put_secret(keyed, mine.tenant_id, "TOKEN", "hunter-22", ACTOR)
    async with database(database_url, make_kek("k1")) as wrong:
        with pytest.raises(CannotDecrypt, match=r"'k1'.*other bytes"):
            await secrets_of(wrong).value(mine.tenant_id, "TOKEN")
    async with database(database_url, K2) as missing:
        with pytest.raises(KeyMissing, match=r"'k1'.*has k2"):
            await secrets_of(missing).value(mine.tenant_id, "TOKEN")


async def test_rewrapping_moves_every_key_in_batches_and_can_be_broken_off(keyed, database_url):
    tenants = [await make_tenant(keyed) for _ in range(5)]
    for tenant_id in tenants:
        await put_secret(keyed, tenant_id, "TOKEN", f"of {tenant_id}", ACTOR)
    async with database(database_url, f"{K2},{K1}") as both:
        assert (await read_wrapping(both, both.keyring, tenants[0])).left == 5
        assert await rewrap(both, both.keyring, tenants[0], limit=3, actor=ACTOR) == 3
        half = await read_wrapping(both, both.keyring, tenants[0])
        assert (half.left, half.data_keys) == (2, {"k1": 2, "k2": 3})
        for tenant_id in tenants:  # half-way everything opens
            assert await secrets_of(both).value(tenant_id, "TOKEN") == f"of {tenant_id}"
    async with database(database_url, f"{K2},{K1}") as again:  # a process that goes on with it
        assert await rewrap(again, again.keyring, tenants[0], limit=3, actor=ACTOR) == 2
        assert await rewrap(again, again.keyring, tenants[0], limit=3, actor=ACTOR) == 0
        done = await read_wrapping(again, again.keyring, tenants[0])
        assert (done.left, done.data_keys) == (0, {"k2": 5})
    async with database(database_url, K2) as new:  # the old one can be thrown away
        for tenant_id in tenants:
            assert await secrets_of(new).value(tenant_id, "TOKEN") == f"of {tenant_id}"
    async with database(database_url, K1) as old:
        assert (await read_wrapping(old, old.keyring, tenants[0])).out_of_reach == 5
        assert await rewrap(old, old.keyring, tenants[0], limit=3, actor=ACTOR) == 0


async def test_two_who_rewrap_at_once_do_not_undo_each_other(keyed, mine, database_url):
    await put_secret(keyed, mine.tenant_id, "TOKEN", "hunter-22", ACTOR)
    async with database(database_url, f"{K2},{K1}") as both, keyed.transaction() as conn:
        await conn.execute("SELECT 1 FROM tenant_keys FOR UPDATE")
        assert await rewrap(both, both.keyring, mine.tenant_id, limit=9, actor=ACTOR) == 0
    async with database(database_url, f"{K2},{K1}") as both:
        assert await rewrap(both, both.keyring, mine.tenant_id, limit=9, actor=ACTOR) == 1


async def test_a_key_that_was_rolled_back_is_not_remembered(keyed, mine):
    async with keyed.tenant_transaction(mine.tenant_id) as conn:
        lost = await keyed.keyring.newest(conn, mine.tenant_id, 5)
        await conn.execute("ROLLBACK")
        await conn.execute("BEGIN")
    await put_secret(keyed, mine.tenant_id, "TOKEN", "hunter-22", ACTOR)
    assert lost is not None
    assert await secrets_of(keyed).value(mine.tenant_id, "TOKEN") == "hunter-22"


def test_where_key_encryption_keys_come_from(tmp_path):
    def keks(**given):
        return load_keks(Settings(data_dir=tmp_path, secrets=SecretSettings(**given)))

    assert keks().current is None  # none is made behind anybody's back
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "kek").write_text(K1)
    assert keks().current == "k1"
    (tmp_path / "others").write_text(f"{K2}\n{K1}\n")
    assert keks(kek_file=tmp_path / "others").current == "k2"
    assert keks(kek=K2, kek_file=tmp_path / "others").current == "k2"
    with pytest.raises(SystemExit, match="nosuch"):
        keks(kek_file=tmp_path / "nosuch")
    with pytest.raises(SystemExit, match=r"HARNESS_SECRETS__KEK: .* is not base64"):
        keks(kek="k1:%%%")


# --- bodies -------------------------------------------------------------------------------------

SAID = "said-"


async def dump(db):
    tables = await sql(
        db,
        "SELECT c.relname AS t FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND NOT c.relispartition",
    )
    rows = []
    for table in tables:
        async with db.connection() as conn:
            cursor = await conn.execute(f"SELECT x::text AS x FROM {table['t']} x")
            rows += [f"{table['t']}: {row['x']}" for row in await cursor.fetchall()]
    return rows


async def a_whole_run(play):
    """Play a run that says something everywhere; it waits for a person in between."""
    run_id = await play.start(f"{SAID}input")
    await play.step(run_id, say(f"{SAID}answer", tools=["look"], extra={"x": f"{SAID}extra"}))
    await steer_run(play.db, play.tenant_id, run_id, text=f"{SAID}steer", by="me")
    await play.step(run_id, ran(f"{SAID}result"))
    await play.step(run_id, say(f"{SAID}output"))
    return run_id


async def test_a_run_says_nothing_in_the_database_and_everything_to_its_tenant(keyed, mine):
    await turn_on(keyed, mine.tenant_id)
    keyed.config = keyed.config.model_copy(update={"snapshot_every": 2})
    run_id = await a_whole_run(mine)
    assert [row for row in await dump(keyed) if SAID in row] == []
    args = (keyed, mine.tenant_id, run_id)
    run = await view_run(*args)
    assert (run["input"], run["output"]) == (f"{SAID}input", f"{SAID}output")
    texts = json.dumps([m["body"] for m in await read_messages(*args, after=0, limit=99)])
    for said in ("input", "answer", "extra", "steer", "result", "output"):
        assert SAID + said in texts
    (call,) = await read_tool_calls(*args, limit=9)
    assert (call["arguments"], call["result"]) == ({"i": 0}, f"{SAID}result")
    page = await read_events(*args, after=0, limit=99)
    assert page.ended
    assert page.events[0]["payload"] == {"agent": "a@1"}
    stored = await sql(keyed, "SELECT left(payload::text, 10) AS p FROM events")
    assert {s["p"] for s in stored} == {'"hsealed1.'}
    await mine.check_whole(run_id)


async def test_the_same_run_without_encryption_is_plain(keyed, mine):
    await a_whole_run(mine)
    said = " ".join(row for row in await dump(keyed) if SAID in row)
    for table in ("runs:", "messages:", "tool_calls:"):
        assert table in said


async def test_plain_and_encrypted_rows_of_one_run(keyed, mine):
    run_id = await mine.start(f"{SAID}input")
    await mine.step(run_id, say(f"{SAID}answer", tools=["look"]))
    await turn_on(keyed, mine.tenant_id)
    await mine.step(run_id, ran(f"{SAID}hidden"))
    await set_encryption(keyed, keyed.keyring, mine.tenant_id, on=False, new_key=False, actor=ACTOR)
    await mine.step(run_id, say(f"{SAID}output"))
    said = " ".join(row for row in await dump(keyed))
    assert f"{SAID}hidden" not in said
    assert f"{SAID}answer" in said
    texts = json.dumps(
        await read_messages(keyed, mine.tenant_id, run_id, after=0, limit=9), default=str
    )
    for word in ("input", "answer", "hidden", "output"):
        assert SAID + word in texts


async def test_a_fork_and_the_next_run_of_a_session_read_what_is_encrypted(keyed, mine):
    await turn_on(keyed, mine.tenant_id)
    keyed.config = keyed.config.model_copy(update={"snapshot_every": 2})
    source = await a_whole_run(mine)
    forked = await fork_run(keyed, mine.tenant_id, source, ForkRun(step=2, input=f"{SAID}fork"))
    claimed = await mine.try_claim(forked.run_id, (await mine.read(forked.run_id)).version)
    assert claimed is not None
    texts = "".join(m.text() for m in claimed.messages)
    assert f"{SAID}answer" in texts
    assert f"{SAID}fork" in texts
    session_id = (await mine.read(source)).session_id
    after = await mine.start(f"{SAID}next", session_id=session_id)
    history = await load_history(keyed, await mine.read(after))
    assert history[0].message.text() == f"{SAID}input"
    assert [row for row in await dump(keyed) if SAID in row] == []


async def test_a_new_data_key_reads_what_the_old_one_wrote(keyed, mine, database_url):
    await turn_on(keyed, mine.tenant_id)
    old = await mine.start(f"{SAID}old")
    await turn_on(keyed, mine.tenant_id, new_key=True)
    new = await mine.start(f"{SAID}new")
    assert (await read_encryption(keyed, mine.tenant_id))["version"] == 2
    versions = await sql(keyed, "SELECT left(input, 12) AS i FROM runs ORDER BY created_at")
    assert [v["i"] for v in versions] == ["hsealed1.t.1", "hsealed1.t.2"]
    async with database(database_url, K1) as fresh:
        for run_id, said in ((old, "old"), (new, "new")):
            assert (await view_run(fresh, mine.tenant_id, run_id))["input"] == SAID + said


async def test_another_process_follows_within_its_time(keyed, mine, database_url, monkeypatch):
    monkeypatch.setattr(keyring_module, "FRESH_S", 0.0)
    async with database(database_url, K1) as other:
        theirs = Play(other, mine.tenant_id)
        await theirs.start(f"{SAID}before")
        await turn_on(keyed, mine.tenant_id)
        await theirs.start(f"{SAID}after")
    said = " ".join(await dump(keyed))
    assert f"{SAID}before" in said
    assert f"{SAID}after" not in said


async def test_a_process_without_the_key_writes_nothing_plain(keyed, mine, db):
    """It refuses, rather than write what the tenant wants encrypted."""
    await turn_on(keyed, mine.tenant_id)
    with pytest.raises(KeyMissing):
        await Play(db, mine.tenant_id).start(f"{SAID}plain")
    run_id = await mine.start(f"{SAID}input")
    with pytest.raises(KeyMissing):
        await view_run(db, mine.tenant_id, run_id)
    assert [row for row in await dump(keyed) if SAID in row] == []


async def test_a_row_that_was_changed_costs_its_neighbours_nothing(keyed, mine):
    await turn_on(keyed, mine.tenant_id)
    runs = [await mine.start(f"{SAID}{n}") for n in range(3)]
    await sql(
        keyed,
        "UPDATE messages SET body = to_json(overlay(body #>> '{}' placing 'AAAA' from 40)) "
        "WHERE run_id = :r RETURNING 1",
        r=runs[1],
    )
    wants = [Want(mine.tenant_id, r, (await mine.read(r)).version, uuid4()) for r in runs]
    claimed = await claim(keyed, wants, worker=uuid4(), hold_s=900)
    assert [c is not None for c in claimed] == [True, False, True]
    with pytest.raises(CannotDecrypt):
        await read_messages(keyed, mine.tenant_id, runs[1], after=0, limit=9)


async def test_a_row_of_another_tenant_opens_nothing(keyed, mine):
    theirs = Play(keyed, await make_tenant(keyed))
    for play in (mine, theirs):
        await turn_on(keyed, play.tenant_id)
    ours, foreign = await mine.start(f"{SAID}mine"), await theirs.start(f"{SAID}theirs")
    copy = (
        "UPDATE runs SET input = (SELECT input FROM runs WHERE id = :f) WHERE id = :r RETURNING 1"
    )
    await sql(keyed, copy, f=foreign, r=ours)
    with pytest.raises(CannotDecrypt):
        await view_run(keyed, mine.tenant_id, ours)


async def test_one_who_lacks_a_key_costs_a_batch_of_commits_nothing(keyed, mine, db):
    """A batch holds steps of several tenants."""
    plain = Play(db, await make_tenant(db))
    run_id = await plain.start("hi")
    held = await plain.claim(run_id)
    other = await mine.start("hi")
    theirs = await mine.claim(other)
    await turn_on(keyed, mine.tenant_id)
    commit = group_commit(db)
    writes = [
        Write(
            run, advance(run.state, [StepDone(say(), WHEN)], WHEN), WHEN, StepRecord(WHEN, uuid4())
        )
        for run in (held, theirs)
    ]
    done, refused = await asyncio.gather(*map(commit, writes), return_exceptions=True)
    assert isinstance(refused, KeyMissing)
    assert isinstance(done, Applied)
    assert done.run.state.status is Status.SUCCEEDED


async def test_what_looks_like_a_ciphertext_is_kept_as_it_is(keyed, mine):
    texts = ["hsealed1.t.1.AAAA", '"hsealed1.j.1.AAAA"', "hsealed1.p.x", "hsealed1."]
    for on in (False, True):
        if on:
            await turn_on(keyed, mine.tenant_id)
        for text in texts:
            run_id = await mine.start(text)
            await mine.step(run_id, say(text, tools=["look"]))
            await mine.step(run_id, ran(text))
            await mine.step(run_id, say(text))
            run = await view_run(keyed, mine.tenant_id, run_id)
            assert (run["input"], run["output"]) == (text, text)
            (call,) = await read_tool_calls(keyed, mine.tenant_id, run_id, limit=9)
            assert call["result"] == text


async def test_artifacts_are_encrypted_under_another_name(keyed, mine, tmp_path):
    blobs = LocalBlobs(tmp_path)
    data = b"some bytes, " * 200_000  # large enough for a thread

    async def keep(content):
        return await save_artifact(
            keyed, blobs, mine.tenant_id, None, name="a", media_type="text/plain", data=content
        )

    plain = await keep(data)
    await turn_on(keyed, mine.tenant_id)
    made = [await keep(data), await keep(b"little")]
    for art, content in ((plain, data), (made[0], data), (made[1], b"little")):
        row, read = await read_artifact(keyed, blobs, mine.tenant_id, art)
        assert read == content
        assert row["size_bytes"] == len(content)
        assert (row["sealed"] is None) == (art == plain)
    (first, second) = await sql(
        keyed, "SELECT sha256 FROM artifacts WHERE size_bytes > 10 ORDER BY id"
    )
    assert first["sha256"] != second["sha256"]
    row, _ = await read_artifact(keyed, blobs, mine.tenant_id, made[0])
    assert plain_digest(row) == first["sha256"]
    stored = blobs.path(second["sha256"]).read_bytes()
    assert b"some bytes" not in stored
    blobs.path(second["sha256"]).write_bytes(stored[:-1] + bytes([stored[-1] ^ 1]))
    with pytest.raises(CannotDecrypt):
        await read_artifact(keyed, blobs, mine.tenant_id, made[0])
    assert decode("artifact", made[1]) != decode("artifact", made[0])
